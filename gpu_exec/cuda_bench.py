"""Micro-benchmarks on the GPU: step probes through ablation switches, the link, HBM, launches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from gpu_exec.device import GpuState
from gpu_exec.fit import middle_mean
from gpu_exec.kernels.config import StageSwitches, StepConfig, StepShape, synthetic_moves
from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    MIRROR,
    SCAN,
    SELECTION,
    TRANSFER,
    Card,
    GapProbe,
    LinkProbe,
    Probe,
    ReadProbe,
    StageProbe,
    StepProbe,
)
from gpu_exec.step_plan import TRANSPORTS
from oasis_sim.model import ModelShape

HOST_BYTES = 4 << 30
"""As where runs are validated: how fast small units are copied depends on the host's pool."""
MOVE_STEPS = 4
WARMUP = 3
MIN_STEPS, MAX_STEPS = 2 * MOVE_STEPS, 60
ROUND_MS = {"sm_gather": 60.0, "copy_engine": 150.0, "naive": 150.0}
"""Time of one round of steps: copies that the host submits vary more from step to step."""
LINK_REPEATS = 10


class CudaBench:
    """Measure probes; the step of the last batch and context stays allocated for the next."""

    def __init__(self, model: ModelShape, gpu: GpuState) -> None:
        """Open the first device; raises GpuUnavailable when torch cannot use it."""
        from gpu_exec.kernels.memory import require_gpu

        self._torch = require_gpu()
        self._shape = StepShape.of_model(model)
        self._key: tuple[Any, ...] | None = None
        self._step: Any = None
        self._loaded: StepProbe | None = None
        self._count = MIN_STEPS
        self._rounds: dict[int, list[Mapping[str, float]]] = {}
        self._turns: dict[tuple[str, int], int] = {}
        properties = self._torch.cuda.get_device_properties(0)
        self.card = Card(
            name=properties.name,
            driver=gpu.driver,
            sms=properties.multi_processor_count,
            hbm_bytes=gpu.memory_bytes or properties.total_memory,
            software=f"CUDA {self._torch.version.cuda}, PyTorch {self._torch.__version__}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._drop()

    def measure_ms(self, probe: Probe, length: int) -> float:
        """Return the typical time of a round of `length` times the usual one, in ms."""
        if isinstance(probe, StageProbe):
            return self._stage_ms(probe, length)
        if isinstance(probe, StepProbe):
            step = self._prepared(probe)
            return middle_mean(step.run(length * self._count, warmup=1).step_ms)
        repeats = LINK_REPEATS * length
        if isinstance(probe, LinkProbe):
            return self._copy_ms(probe, repeats)
        if isinstance(probe, ReadProbe):
            return self._read_ms(probe.size_bytes, repeats)
        return self._gap_ms(probe, repeats)

    # Steps -----------------------------------------------------------------------------------

    def _stage_ms(self, probe: StageProbe, length: int) -> float:
        """Return a stage of the next round; one round of steps with clocks serves all stages."""
        step = self._prepared(probe.step)
        rounds, turn = self._rounds.setdefault(length, []), (probe.stage, length)
        done = self._turns.get(turn, 0)
        if done == len(rounds):
            rounds.append(step.run(length * self._count, warmup=1, stages=True).stage_ms)
        self._turns[turn] = done + 1
        return float(rounds[done].get(probe.stage, 0.0))

    def _prepared(self, probe: StepProbe) -> Any:
        """Return the step of the probe, with its stages and moves; build it when it is new."""
        from gpu_exec.step import DecodeStep

        key = (
            probe.batch,
            probe.context_tokens,
            probe.block_tokens,
            probe.budget_tokens,
            probe.dense,
        )
        if key != self._key:
            self._drop()
            self._step, self._key = DecodeStep(self._config(probe)), key
        if self._loaded != probe:
            self._step.reconfigure(
                stages=switches(probe.stages), transport=TRANSPORTS[probe.transport]
            )
            config = self._step.config
            moves = synthetic_moves(config, MOVE_STEPS, probe.per_head, probe.context_tokens)
            self._step.load(moves)
            first = self._step.run(MIN_STEPS, warmup=WARMUP).median_ms
            wanted = min(MAX_STEPS, max(MIN_STEPS, ROUND_MS[probe.transport] / first))
            self._count = MOVE_STEPS * round(wanted / MOVE_STEPS)  # each list of moves as often
            self._loaded, self._rounds, self._turns = probe, {}, {}
        return self._step

    def _config(self, probe: StepProbe) -> StepConfig:
        blocks = probe.budget_tokens // probe.block_tokens
        return StepConfig(
            shape=self._shape,
            batch=probe.batch,
            context_capacity=probe.context_tokens,
            block_tokens=probe.block_tokens,
            chosen_blocks=blocks,
            pool_blocks=blocks,
            dense=probe.dense,
            draft_row=not probe.dense,
            host_bytes=HOST_BYTES,
        )

    def _drop(self) -> None:
        """Release the step; pinned memory stays cached by torch for the next one."""
        if self._step is not None:
            self._step.close()
        self._step = self._key = self._loaded = None
        gc.collect()

    # Link, memory, launches ------------------------------------------------------------------

    def _copy_ms(self, probe: LinkProbe, repeats: int) -> float:
        torch = self._torch
        self._drop()
        host = torch.empty(probe.size_bytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(probe.size_bytes, dtype=torch.uint8, device="cuda")
        target, source = (device, host) if probe.direction == "h2d" else (host, device)
        return self._typical_ms(lambda: target.copy_(source, non_blocking=True), repeats)

    def _read_ms(self, size_bytes: int, repeats: int) -> float:
        torch = self._torch
        self._drop()
        values = torch.empty(size_bytes // 4, dtype=torch.float32, device="cuda").uniform_()
        return self._typical_ms(values.amax, repeats)

    def _gap_ms(self, probe: GapProbe, repeats: int) -> float:
        """Time one node of a graph of kernels with one thread each, in a chain."""
        from gpu_exec.kernels import library

        torch = self._torch
        flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        library.launch("oasis_set_flag", library.pointer(flag), 0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(probe.nodes):
                library.launch("oasis_set_flag", library.pointer(flag), index)
        return self._typical_ms(graph.replay, repeats) / probe.nodes

    def _typical_ms(self, work: Callable[[], Any], repeats: int) -> float:
        torch = self._torch
        for _ in range(WARMUP):
            work()
        times = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return middle_mean(times)


def switches(stages: tuple[str, ...]) -> StageSwitches:
    """Return the switches that leave only these stages on."""
    return StageSwitches(
        scan=SCAN in stages,
        selection=SELECTION in stages,
        transfer=TRANSFER in stages,
        mirror=MIRROR in stages,
        attention=ATTENTION in stages,
        linear=LINEAR in stages,
        draft=DRAFT in stages,
    )
