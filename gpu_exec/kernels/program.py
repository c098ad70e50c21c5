"""Enqueue one decode step: foreground, prediction, transfer and mirror streams, events per layer.

The order inside a layer is QKV, append, scan with selection, attention, output and FFN. The gather
of a layer follows that layer's selection, mirror and attention (it overwrites slots which the
attention reads); the next step's attention follows the whole step, so it never reads a slot in
flight.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_exec.kernels.abi import select_scratch_bytes
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StepConfig
from gpu_exec.kernels.library import launch, pointer, wide
from gpu_exec.kernels.linear import DraftWeights, Gemm, LayerWeights
from gpu_exec.kernels.marks import Marks
from gpu_exec.kernels.memory import DraftMemory, StepMemory
from gpu_exec.kernels.movelist import DeviceMoves
from gpu_exec.kernels.rank_sum import RankSum, StepSums

MIRROR_CTAS = 4
SELECT_THREADS = 128
EXCLUSIVE_BYTES = 180 * 1024
EPSILON = ctypes.c_float(1e-6)


@dataclass(frozen=True, eq=False)
class Parts:
    """Bundle what the program works on."""

    config: StepConfig
    memory: StepMemory
    weights: LayerWeights | None
    draft: tuple[DraftMemory, DraftWeights] | None
    arguments: StepArguments
    moves: DeviceMoves
    gemm: Gemm
    sums: RankSum | None = None
    delays_ns: Mapping[str, int] = field(default_factory=dict)


class StepProgram:
    """Enqueue the step's kernels on the current stream and on side streams that it forks.

    ``checked``: the all-reduces sum known patterns in place of the activations.
    """

    def __init__(self, parts: Parts, parity: int, marks: Marks, checked: bool = False) -> None:
        import torch

        self.parts, self.parity, self.marks = parts, parity, marks
        self.config, self.memory = parts.config, parts.memory
        self.stages = parts.config.stages
        joined = parts.sums if self.stages.all_reduce else None
        self.sums = StepSums(joined, self.memory.x, checked)
        self.transfers = self.stages.transfer and not self.config.dense
        self.scans = self.stages.scan and not self.config.dense
        self.mirrors = self.stages.mirror and not self.config.dense
        arrangement = self._arrangement()
        self.window = arrangement == "window" and self.transfers
        self.resident = arrangement == "resident" and self.transfers
        self.hosted = arrangement == "hosted"
        self.main = torch.cuda.current_stream()
        high = self.main if self.stages.serial else None
        self.transfer = high or torch.cuda.Stream(priority=-3)
        self.mirror = high or torch.cuda.Stream(priority=0)
        self.flag = high or torch.cuda.Stream(priority=-3)
        beside = self.config.prediction == "stream" and high is None
        self.prediction = torch.cuda.Stream(priority=-1) if beside else self.main
        apart = self.config.selection == "separate" and high is None
        self.selection = torch.cuda.Stream(priority=0) if apart else self.prediction
        self._forked: set[Any] = set()
        self.scratch = select_scratch_bytes(
            self.config.max_blocks, self.config.pool_blocks, self.config.chosen_blocks
        )

    def _arrangement(self) -> str:
        """Return how transfers run: layer by layer in serial and in resident timed steps.

        (A resident gather lasts as long as the step; its layers could not be timed.)
        """
        timed_resident = self.config.arrangement == "resident" and type(self.marks) is not Marks
        if self.stages.serial or (timed_resident and not self.config.host_driven):
            return "always"
        return "hosted" if self.config.host_driven else self.config.arrangement

    def enqueue(self) -> None:
        """Enqueue the whole step and join every stream."""
        m = self.memory
        self.marks.begin()
        launch("oasis_begin_step", self.parts.arguments.begin(self.parts.moves.positions))
        layers = self.config.shape.layers
        if self.resident:
            self._fork(self.transfer)
            self._gather(0, (0, layers), waiting=True)
        if self.stages.linear:
            m.x.copy_(m.x0)
        for layer in range(layers):
            self._layer(layer)
        if self.parts.draft is None:
            self._drain()
        self._finish()
        for stream in (self.transfer, self.mirror, self.flag, self.prediction, self.selection):
            self._join(stream)

    def _drain(self) -> None:
        """Let the gather finish what the windows left."""
        if self.window:
            layers = self.config.shape.layers
            self._fork_transfer()
            self._gather(layers, (0, layers))

    def _layer(self, layer: int) -> None:
        arguments, delay = self.parts.arguments, self._delay
        self._join(self.prediction)  # the last layer's scan reads the query buffer
        with self.marks.span("qkv", layer):
            self._qkv(layer)
        if self.mirrors:
            self._fork(self.mirror)
            self._mirror(layer)
        if self.scans:
            self._scan(layer)
        delay("attention")
        if self.stages.attention:
            with self.marks.span("attention", layer):
                args = arguments.attention(layer, self.parity)
                launch("oasis_attention", args, self.config.pairs, 0, self._early())
        self._release(layer)
        with self.marks.span("output_ffn", layer):
            self._ffn(layer)
        self.marks.rest(layer)

    def _release(self, layer: int) -> None:
        """Let the transfer of a layer run, now that its attention has read the slots."""
        if not self.transfers:
            return
        if self.window:
            self._fork(self.flag)
            self._on(self.flag, "oasis_set_flag", pointer(self.memory.stop), layer)
        elif self.resident or self.hosted:
            for stream in (self.main, self.selection, self.mirror):
                self._order(stream, self.flag)
            flag = self.memory.released.alias if self.hosted else pointer(self.memory.ready)
            self._on(self.flag, "oasis_set_flag", flag, layer + 1)
        else:
            self._fork_transfer()
            self._gather(layer, (layer, layer + 1))

    def _qkv(self, layer: int) -> None:
        m, w = self.memory, self.parts.weights
        if w is not None:
            self._norm(m.x, w.norm[2 * layer], m.normed)
            self.parts.gemm(m.normed, w.qkv[layer], m.qkv, None)
        if self.window and layer > 0:  # before the append: the SMs are free for its CTAs now
            self._fork_transfer()
            self._gather(layer, (0, layer), stop_at=layer)
        if w is not None:
            launch("oasis_append", self.parts.arguments.append(layer, w.head_norm), self._early())

    def _ffn(self, layer: int) -> None:
        m, w, gemm = self.memory, self.parts.weights, self.parts.gemm
        if w is None:
            return
        gemm(m.attended, w.o[layer], m.x, self.sums.residual)
        self.sums.enqueue(layer, 0, self.marks)
        self._norm(m.x, w.norm[2 * layer + 1], m.normed)
        gemm(m.normed, w.gate_up[layer], m.gate_up, None)
        self._gate(m.gate_up, m.gated)
        gemm(m.gated, w.down[layer], m.x, self.sums.residual)
        self.sums.enqueue(layer, 1, self.marks)

    def _finish(self) -> None:
        m, w, gemm = self.memory, self.parts.weights, self.parts.gemm
        if w is not None:
            with self.marks.span("lm_head", 0):
                self._norm(m.x, w.norm[-1], m.normed)
                gemm(m.normed[: self.config.batch], w.lm_head, m.logits, None)
        if self.parts.draft is not None:
            with self.marks.span("draft", 0):
                self._draft(*self.parts.draft)

    def _draft(self, d: DraftMemory, w: DraftWeights) -> None:
        gemm = self.parts.gemm
        gemm(d.features, w.fc, d.fused, None)
        gemm(d.joined, w.qkv, d.qkv, None)
        self._drain()  # beside the draft head's attention, not beside the LM head
        fp8 = int(self.config.draft_kv == "fp8")
        arguments = self.parts.arguments.draft_attention(d)
        launch("oasis_attention", arguments, self.config.pairs, fp8, 0)
        gemm(d.attended, w.o, d.fused, d.fused)
        gemm(d.fused, w.gate_up, d.gate_up, None)
        self._gate(d.gate_up, d.gated)
        gemm(d.gated, w.down, d.fused, None)
        gemm(d.fused, w.lm_head, d.logits, None)

    def _scan(self, layer: int) -> None:
        import torch

        c, arguments = self.config, self.parts.arguments
        select = arguments.select(layer, self.parity)
        fused = c.selection == "fused" and self.stages.selection
        self._fork(self.prediction)
        self._order(self.selection, self.prediction)  # scores are reused every other layer
        with torch.cuda.stream(self.prediction):
            self._delay("scan")
            with self.marks.span("prediction", layer):
                fp8 = int(c.key_format == "fp8")
                args = arguments.scan(layer, fused)
                early = self._early() if self.prediction is self.main else 0
                launch("oasis_scan", args, select, c.pairs, fp8, self.scratch, early)
        if not self.stages.selection or fused:
            return
        self._order(self.prediction, self.selection)
        with torch.cuda.stream(self.selection):
            self._delay("selection")
            with self.marks.inside("selection", layer, behind=True) as clock:
                place = (pointer(self.memory.position), pointer(self.memory.step))
                sizes = (c.pairs, c.max_blocks, self.scratch, SELECT_THREADS)
                launch("oasis_select", select, *place, *sizes, clock)

    def _mirror(self, layer: int) -> None:
        import torch

        with torch.cuda.stream(self.mirror):
            self._delay("mirror")
            with self.marks.inside("mirror", layer) as clock:
                launch("oasis_mirror", self.parts.arguments.mirror(layer), MIRROR_CTAS, clock)

    def _gather(
        self,
        layer: int,
        layers: tuple[int, int],
        stop_at: int | None = None,
        waiting: bool = False,
    ) -> None:
        import torch

        c, arguments = self.config, self.parts.arguments
        with torch.cuda.stream(self.transfer):
            self._delay("transfer")
            with self.marks.span("transfer", layer):
                if c.host_driven:
                    self.parts.moves.copy_from_host(arguments, layer)
                    return
                args = arguments.gather(self.parts.moves, layers, stop_at, waiting)
                ring = c.gather_ring if c.transport == "tma_gather" else 0
                reserve = EXCLUSIVE_BYTES if c.gather_exclusive else 0
                launch("oasis_gather", args, c.gather_ctas, c.gather_threads, ring, reserve)

    def _norm(self, x: Any, weight: Any, out: Any) -> None:
        rows, width = x.shape
        tensors = (pointer(x), pointer(weight), pointer(out))
        early = 0 if self.sums.on else self._early()  # each norm follows an all-reduce
        launch("oasis_rms_norm", *tensors, rows, width, EPSILON, early)

    def _gate(self, gate_up: Any, out: Any) -> None:
        launch("oasis_silu_mul", pointer(gate_up), pointer(out), *out.shape, self._early())

    def _on(self, stream: Any, name: str, *arguments: Any) -> None:
        import torch

        with torch.cuda.stream(stream):
            launch(name, *arguments)

    def _early(self) -> int:
        """Say whether a kernel may start early, while the one before it on its stream ends."""
        return int(self.config.early_launch)

    def _delay(self, stage: str) -> None:
        if stage in self.parts.delays_ns:
            launch("oasis_delay", wide(self.parts.delays_ns[stage]))

    def _fork_transfer(self) -> None:
        """Let the transfer stream wait for attention, selection and mirror so far."""
        for stream in (self.main, self.selection, self.mirror):
            self._order(stream, self.transfer)

    def _fork(self, stream: Any) -> None:
        self._order(self.main, stream)

    def _join(self, stream: Any) -> None:
        self._order(stream, self.main)

    def _order(self, first: Any, second: Any) -> None:
        """Let ``second`` wait for what ``first`` holds; streams never forked hold nothing."""
        if first is not second and (first is self.main or first in self._forked):
            second.wait_stream(first)
            self._forked.add(second)
