"""Run decode steps with real kernels and pinned memory: one CUDA graph replay per step.

    step = DecodeStep(StepConfig(QWEN3_8B, batch=128, context_capacity=16384))
    step.load(moves)                     # StepMoves: the schedule's copies and positions
    times = step.run(20)                 # StepTimes: per step
    stages = step.run(5, stages=True)    # the same with per-stage times (adds clocks)
    step.run_one(); step.verify()        # stamps of the units moved by the last step
    step.close()

The host does nothing per layer: positions, copy lists and slot lists lie on the device. Transports
that the host drives are the exception: the graph releases one layer after the other through a
counter in host memory, and the host submits its copies to a stream that waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpu_exec.kernels import library
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import (
    GRAPH_TRANSPORTS,
    StageSwitches,
    StepConfig,
    StepMoves,
    StepShape,
    StepTimes,
    synthetic_moves,
)
from gpu_exec.kernels.linear import DraftWeights, LayerWeights, choose_gemm, warm_up
from gpu_exec.kernels.marks import ClockMarks, CopyMarks, Marks, StageSums, named
from gpu_exec.kernels.memory import DraftMemory, StepMemory, require_gpu
from gpu_exec.kernels.movelist import DeviceMoves
from gpu_exec.kernels.program import Parts, StepProgram
from gpu_exec.kernels.rank_sum import RankSum
from gpu_exec.kernels.shape import QWEN3_8B
from oasis_sim.errors import RunFailed, UsageError

__all__ = [
    "QWEN3_8B",
    "DecodeStep",
    "StageSwitches",
    "StepConfig",
    "StepMoves",
    "StepShape",
    "StepTimes",
    "Verification",
    "synthetic_moves",
]

_PIECE_BYTES = 8192


@dataclass(frozen=True)
class Verification:
    """Count units of the last step checked on the device and those that were wrong."""

    checked_units: int
    wrong_units: int
    aliased: bool


class DecodeStep:
    """Own the memory, the weights and the captured graphs of one configuration.

    ``delays_ns`` holds stages back on the device (fault injection in tests). ``sums`` joins the
    device to those that share its step: all of them are warmed up, captured and run alike.
    """

    def __init__(
        self,
        config: StepConfig,
        delays_ns: Mapping[str, int] | None = None,
        sums: RankSum | None = None,
    ) -> None:
        self._torch = require_gpu()
        self._sums, self._checking = sums, False
        self.config = config
        self.memory = StepMemory(config)
        self._weights = LayerWeights(config) if config.stages.linear else None
        with_draft = config.stages.draft and config.stages.linear and not config.dense
        self._draft = (DraftMemory(config), DraftWeights(config)) if with_draft else None
        self._delays = dict(delays_ns or {})
        self._parts: Parts | None = None
        self._graphs: dict[tuple[int, bool, bool], tuple[Any, Marks]] = {}
        self._executed = 0
        self._copies = self._torch.cuda.Stream(priority=-3)
        self._copy_marks = CopyMarks()

    def reconfigure(self, **changes: Any) -> None:
        """Change what needs no new memory (stages, transport, arrangement, gather CTAs, gemm)."""
        fixed = {"shape", "batch", "context_capacity", "block_tokens", "pool_blocks", "dense"}
        wrong = sorted(fixed & changes.keys())
        if wrong:
            raise UsageError(f"a new step is needed to change {', '.join(wrong)}")
        self.config = replace(self.config, **changes)
        self._graphs.clear()
        if self._parts is not None:
            self._parts = self._make_parts(self._parts.moves)

    def hold_back(self, delays_ns: Mapping[str, int]) -> None:
        """Hold stages back for so long, as ``delays_ns`` does, from the next `reconfigure` on."""
        self._delays = {stage: delay for stage, delay in delays_ns.items() if delay > 0}

    def load(self, moves: StepMoves) -> None:
        """Put a move list on the device; the next step executes its first entry."""
        self._graphs.clear()
        self._parts = self._make_parts(DeviceMoves(self.config, moves))
        self.memory.step.fill_(-1)
        self._executed = 0

    def try_sums(self) -> int:
        """Do two all-reduces outside a graph, with all devices at once; return wrong elements."""
        if self._sums is None:
            return 0
        for site in range(2):
            self._sums.checked(self.memory.x, site)
        checked, wrong = self._sums.counts()
        return wrong + abs(checked - 2 * int(self.memory.x.numel()))

    def check_sums(self, on: bool) -> None:
        """Let the all-reduces of steps from now on sum known patterns, for `sums`; or not."""
        self._checking = on and self._sums is not None

    def sums(self) -> tuple[int, int]:
        """Return how many elements of sums were checked since the last call, and wrong."""
        return (0, 0) if self._sums is None else self._sums.counts()

    def capture(self, stages: bool = False) -> None:
        """Capture a form of the step before it runs: devices that share it do, one by one."""
        self._graph(0, stages)

    def run(self, steps: int, warmup: int = 3, stages: bool = False) -> StepTimes:
        """Execute steps and time each; with ``stages`` also time the stages inside."""
        torch, m = self._torch, self.memory
        for _ in range(warmup):
            self.run_one(stages)
        torch.cuda.synchronize()
        before = (int(m.moved.item()), int(m.mirrored.item()))
        first_step = self._executed
        times, sums = self._timed(steps, stages)
        units = sum(self._units(first_step + i) for i in range(steps))
        pieces = int(m.moved.item()) - before[0]
        mirrored = int(m.mirrored.item()) - before[1]
        if self.config.transport not in GRAPH_TRANSPORTS:
            pieces = units * (self.config.unit_bytes // _PIECE_BYTES)
        return StepTimes(
            step_ms=tuple(times),
            stage_ms=_medians([row.net_ms for row in sums]),
            moved_units=pieces * _PIECE_BYTES // self.config.unit_bytes,
            moved_bytes=pieces * _PIECE_BYTES,
            mirrored_bytes=mirrored * self.config.unit_bytes,
            raw_stage_ms=_medians([row.raw_ms for row in sums]),
            empty_ms=float(np.median([row.empty_ms for row in sums])) if sums else 0.0,
        )

    def run_one(self, stages: bool = False) -> None:
        """Execute the next step without waiting for it."""
        parts = self._need_parts()
        parts.moves.phase = self._executed % parts.moves.steps
        parity = self._executed % 2 if self.config.moves_from == "selection" else 0
        self._copy_marks = CopyMarks()
        with named(f"step {self._executed}"):
            self._enqueue(parts, parity, stages)
        self._executed += 1

    def _enqueue(self, parts: Parts, parity: int, stages: bool) -> None:
        if self.config.host_driven and self.config.stages.serial:
            marks = self._new_marks(stages)
            self._copies.wait_stream(self._torch.cuda.current_stream())
            with self._torch.cuda.stream(self._copies):  # batches cannot go to the default stream
                StepProgram(parts, parity, marks, self._checking).enqueue()
            self._torch.cuda.current_stream().wait_stream(self._copies)
            self._graphs[(parity, stages, self._checking)] = (None, marks)
        else:
            graph = self._graph(parity, stages)[0]
            self.memory.released.reset()
            graph.replay()
            if self.config.host_driven:
                self._submit_copies(parts, stages)

    def _submit_copies(self, parts: Parts, stages: bool) -> None:
        """Submit each layer's copies once the graph has released it; the step ends with them."""
        with self._torch.cuda.stream(self._copies):
            parts.moves.submit(parts.arguments, self._copy_marks if stages else None)
        self._torch.cuda.current_stream().wait_stream(self._copies)

    def verify(self) -> Verification:
        """Check on the device every byte of the units that the last step moved (stamped pools)."""
        if not self.config.stamped or self._executed == 0 or self.config.dense:
            raise UsageError("only the moves of an executed step in a stamped pool can be checked")
        m, parts = self.memory, self._need_parts()
        m.checked.zero_()
        m.wrong.zero_()
        for layer in range(self.config.shape.layers):
            args = parts.arguments.gather(parts.moves, (layer, layer + 1))
            counters = (library.pointer(m.checked), library.pointer(m.wrong))
            library.launch("oasis_check_stamps", args, *counters)
        return Verification(
            checked_units=int(m.checked.item()),
            wrong_units=int(m.wrong.item()),
            aliased=self.config.host_aliased,
        )

    def spans_ms(self, stage: str) -> list[float]:
        """Return every span of a stage of the last step that was run with `stages`, in order."""
        return self._last_marks().spans_ms(stage)

    def hidden_state(self) -> bytes:
        """Return what the last step left of the residual stream; alike on all devices."""
        return bytes(self.memory.x.view(self._torch.int16).cpu().numpy())

    def close(self) -> None:
        """Release graphs, device memory and pinned memory."""
        self._torch.cuda.synchronize()
        self._graphs.clear()
        self._parts = self._weights = self._draft = self._sums = None
        del self.memory
        self._torch.cuda.empty_cache()

    def _make_parts(self, moves: DeviceMoves) -> Parts:
        return Parts(
            config=self.config,
            memory=self.memory,
            weights=self._weights if self.config.stages.linear else None,
            draft=self._draft if self.config.stages.draft else None,
            arguments=StepArguments(self.config, self.memory),
            moves=moves,
            gemm=choose_gemm(self.config.gemm),
            sums=self._sums,
            delays_ns=self._delays,
        )

    def _need_parts(self) -> Parts:
        if self._parts is None:
            raise UsageError("load a move list first")
        return self._parts

    def _units(self, executed: int) -> int:
        """Return the moves of the schedule in the given executed step."""
        if self.config.dense or not self.config.stages.transfer:
            return 0
        moves = self._need_parts().moves
        return moves.units(executed % moves.steps)

    def _timed(self, steps: int, stages: bool) -> tuple[list[float], list[StageSums]]:
        torch = self._torch
        rows: list[StageSums] = []
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        events[0].record()
        for index in range(steps):
            self.run_one(stages)
            events[index + 1].record()
            if stages:
                torch.cuda.synchronize()
                found, copies = self._last_marks().sums(), self._copy_marks.totals_ms()
                net, raw = {**found.net_ms, **copies}, {**found.raw_ms, **copies}
                rows.append(StageSums(net, raw, found.empty_ms))
                if index + 1 < steps:
                    events[index + 1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(events)], rows

    def _last_marks(self) -> ClockMarks:
        parity = (self._executed - 1) % 2 if self.config.moves_from == "selection" else 0
        marks = self._graphs[(parity, True, self._checking)][1]
        if not isinstance(marks, ClockMarks):
            raise RunFailed("the step was not instrumented")
        return marks

    def _new_marks(self, stages: bool) -> Marks:
        if not stages:
            return Marks()
        return ClockMarks(self._torch, self.config.shape.layers)

    def _graph(self, parity: int, stages: bool) -> tuple[Any, Marks]:
        key = (parity, stages, self._checking)
        if key not in self._graphs:
            torch, parts = self._torch, self._need_parts()
            warm_up(parts.gemm, self.memory, parts.weights, parts.draft)
            torch.cuda.synchronize()
            marks = self._new_marks(stages)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(priority=-1)
            # NCCL's own threads may call CUDA meanwhile, hence not "global".
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                StepProgram(parts, parity, marks, self._checking).enqueue()
            self._graphs[key] = (graph, marks)
        return self._graphs[key]


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each stage over steps; a step without it counts as 0."""
    names = sorted({name for row in rows for name in row})
    return {name: float(np.median([row.get(name, 0.0) for row in rows])) for name in names}
