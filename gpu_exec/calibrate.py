"""Calibration: micro-benchmarks of one card become the cost model of the engine `gpu_exec`.

Every number comes from kernels that run alone or in pairs; no whole step with transfers is ever
fitted (those are what `validate` judges by). Batches and contexts here do not occur there.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from gpu_exec.calibrate_transport import TransportCalibration
from gpu_exec.calibration_points import (
    ATTENTION_BATCHES,
    BACKGROUND_BATCHES,
    DENSE_POINTS,
    DRAFT_BATCHES,
    LINEAR_BATCHES,
    PAIR_BATCHES,
    SCAN_POINTS,
    SELECTION_POINTS,
    TRANSFER_COUNTS,
)
from gpu_exec.fit import Line, curve, line_through, share, slowdown
from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    MIRROR,
    SCAN,
    SELECTION,
    GapProbe,
    Notebook,
    StepProbe,
)
from oasis_sim.engine.costs import CostModel
from oasis_sim.hardware import (
    Curve,
    EngineCosts,
    HardwareProfile,
    Launch,
    LinearEfficiency,
    Prefill,
    Selection,
    Slowdown,
)
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme, load_scheme
from oasis_sim.units import PS_PER_MS


@dataclass(frozen=True)
class Kept:
    """Hold what calibration does not measure and takes from the base profile."""

    expert_efficiency: Curve
    prefill: Prefill
    collective_ps: int
    collective_apart: bool
    hbm_share: float
    reserved_bytes: int

    @classmethod
    def of(cls, costs: EngineCosts) -> Kept:
        """Take these parts of an engine's costs."""
        return cls(
            costs.expert_efficiency,
            costs.prefill,
            costs.collective_ps,
            costs.collective_apart,
            costs.hbm_share,
            costs.reserved_bytes,
        )


class Calibration:
    """Measure one card through a notebook and derive the cost model; `profile` gives the limits."""

    def __init__(
        self, notebook: Notebook, profile: HardwareProfile, model: ModelShape, kept: Kept
    ) -> None:
        """Measure the launch gap, which other probes need."""
        self._book = notebook
        self._nodes = notebook.bench.nodes
        self._profile = profile
        self._model = model
        self._kept = kept
        self._scheme = load_scheme("oasis")
        self._gap_ms = notebook.ms(GapProbe())
        self._transports = TransportCalibration(notebook, model, self._scheme)

    def costs(self, source: str) -> EngineCosts:
        """Run every probe and return the cost model."""
        linear = curve([self._linear_point(b) for b in LINEAR_BATCHES])
        dense = curve([self._dense_point(*p) for p in DENSE_POINTS])
        scan, selection = self._beside_scan(), self._beside_selection()
        return EngineCosts(
            name="gpu_exec",
            source=source,
            linear_efficiency=LinearEfficiency.same(linear),
            expert_efficiency=self._kept.expert_efficiency,
            attention_efficiency=curve([self._attention_point(b) for b in ATTENTION_BATCHES]),
            dense_attention_efficiency=dense,
            scan_efficiency=curve([self._scan_point(*p) for p in SCAN_POINTS]),
            selection=self._selection(),
            draft_layers=self._draft_layers(dense),
            launch=self._launch(),
            prefill=self._kept.prefill,
            collective_ps=self._kept.collective_ps,
            collective_apart=self._kept.collective_apart,
            transports={name: self._transports.measure(name) for name in TRANSFER_COUNTS},
            prediction_slowdown=scan,
            selection_slowdown=selection,
            hbm_share=self._kept.hbm_share,
            reserved_bytes=self._kept.reserved_bytes,
            draft_reads_kv=True,
        )

    # Ideal times -----------------------------------------------------------------------------

    def _cost(self, scheme: Scheme) -> CostModel:
        return CostModel(self._profile, "roofline", self._model, scheme, 1)

    def _ideal_linear_ms(self, rows: int) -> float:
        cost = self._cost(self._scheme)
        layer = cost.linear_ps(cost.share.qkv, rows) + cost.linear_ps(cost.share.output_ffn, rows)
        total = self._model.layers * layer + cost.linear_ps(cost.share.lm_head, rows)
        return total / PS_PER_MS

    def _read_ms(self, layer_bytes: float) -> float:
        """Return the ideal time to read these bytes in every layer."""
        return 1e3 * self._model.layers * layer_bytes / self._profile.gpu.hbm_bytes_per_s

    # Single kernels --------------------------------------------------------------------------

    def _gaps_ms(self, nodes_per_layer: int) -> float:
        return self._gap_ms * nodes_per_layer * self._model.layers

    def _net_ms(self, probe: StepProbe, nodes_per_layer: int) -> float:
        """Return a probe's time without launch gaps (never below half of it)."""
        time = self._book.ms(probe)
        return max(0.5 * time, time - self._gaps_ms(nodes_per_layer))

    def _linear_ms(self, batch: int) -> float:
        return self._net_ms(StepProbe((LINEAR,), batch), self._nodes.linear)

    def _linear_point(self, batch: int) -> tuple[float, float]:
        rows = 2 * batch
        return float(rows), share(self._ideal_linear_ms(rows), self._linear_ms(batch))

    def _attention_point(self, batch: int) -> tuple[float, float]:
        cost = self._cost(self._scheme)
        # The simulator counts the local block as far as it is filled, half of it on average.
        block = self._scheme.block_tokens
        tokens = self._scheme.chosen_blocks * block + (block + 1) / 2
        size = batch * tokens * cost.share.kv_bytes_layer
        measured = self._net_ms(StepProbe((ATTENTION,), batch), self._nodes.attention)
        return float(size), share(self._read_ms(size), measured)

    def _dense_point(self, batch: int, context: int) -> tuple[float, float]:
        size = batch * context * self._cost(self._scheme).share.kv_bytes_layer
        probe = StepProbe((ATTENTION,), batch, context, dense=True)
        return float(size), share(self._read_ms(size), self._net_ms(probe, 1))

    def _scan_point(self, batch: int, context: int) -> tuple[float, float]:
        blocks = context // self._scheme.block_tokens
        size = batch * blocks * self._cost(self._scheme).scan_bytes_per_block()
        measured = self._book.ms(StepProbe((SCAN,), batch, context))
        return float(size), share(self._read_ms(size), measured)

    def _selection(self) -> Selection:
        """Split selection's time into fixed, per head and per candidate block."""
        heads = self._model.kv_heads
        by_batch: dict[int, Line] = {}
        for batch in sorted({b for b, _ in SELECTION_POINTS}):
            points = [
                (c // self._scheme.block_tokens, self._layer_ps(batch, c))
                for b, c in SELECTION_POINTS
                if b == batch
            ]
            by_batch[batch] = line_through([p[0] for p in points], [p[1] for p in points])
        per_candidate = statistics.mean(
            max(0.0, line.slope) / (batch * heads) for batch, line in by_batch.items()
        )
        fixed = [
            self._layer_ps(b, c) - per_candidate * b * heads * c / self._scheme.block_tokens
            for b, c in SELECTION_POINTS
        ]
        line = line_through([float(b * heads) for b, _ in SELECTION_POINTS], fixed)
        return Selection(round(line.fixed), max(0.0, line.slope), per_candidate)

    def _layer_ps(self, batch: int, context: int) -> float:
        """Return what selection adds to the scan of one layer (it runs at the scan's end)."""
        scan = self._book.ms(StepProbe((SCAN,), batch, context))
        both = self._book.ms(StepProbe((SCAN, SELECTION), batch, context))
        return max(0.0, both - scan) * PS_PER_MS / self._model.layers

    def _draft_layers(self, dense: Curve) -> float:
        """Return the linear layers of the draft forward in units of one layer's linear time.

        The draft's attention over its own KV is priced by `dense` and taken off first.
        """
        ratios = []
        cost = self._cost(self._scheme)
        for batch in DRAFT_BATCHES:
            probe = StepProbe((LINEAR, DRAFT), batch)
            extra = self._book.ms(probe) - self._book.ms(StepProbe((LINEAR,), batch))
            size = batch * probe.context_tokens * cost.share.draft_bytes_token(self._scheme)
            read = 1e3 * size / self._profile.gpu.hbm_bytes_per_s / dense.at(size)
            lm_head = cost.linear_ps(cost.share.lm_head, 2 * batch) / PS_PER_MS
            part = 1.0 - lm_head / self._ideal_linear_ms(2 * batch)
            ratios.append((extra - read) / (part * self._linear_ms(batch) / self._model.layers))
        return max(0.0, statistics.mean(ratios))

    def _launch(self) -> Launch:
        """Return the gaps, and what a step takes beyond its kernels run one by one."""
        nodes = self._nodes
        return Launch(
            gap_ps=round(self._gap_ms * PS_PER_MS),
            kernels_per_layer=nodes.linear + nodes.attention,
            step_ps=self._residual_ps(dense=False),
            request_ps=0,
            dense_step_ps=self._residual_ps(dense=True),
            dense_request_ps=0,
            join_streams=True,
        )

    def _residual_ps(self, dense: bool) -> int:
        rest = []
        for batch in (12, 24):
            parts = [StepProbe((stage,), batch, dense=dense) for stage in (LINEAR, ATTENTION)]
            stages = (LINEAR, ATTENTION) if dense else (LINEAR, ATTENTION, MIRROR)
            both = self._book.ms(StepProbe(stages, batch, dense=dense))
            rest.append(both - sum(self._book.ms(probe) for probe in parts))
        return max(0, round(statistics.mean(rest) * PS_PER_MS))

    # Neighbours -------------------------------------------------------------------------------

    def _beside_scan(self) -> Slowdown:
        """Return what the scan does to linear layers and attention."""
        return self._slowdown((), (SCAN,))

    def _beside_selection(self) -> Slowdown:
        """Return what selection, which runs at the scan's end, does to them."""
        return self._slowdown((SCAN,), (SELECTION,))

    def _slowdown(self, before: tuple[str, ...], added: tuple[str, ...]) -> Slowdown:
        """Return what `added` stages do to the foreground that already has `before` beside it."""

        def factor(stage: str, batch: int) -> float:
            probe = StepProbe((stage,), batch)
            alone = self._book.ms(replace(probe, stages=(stage, *before)))
            together = self._book.ms(replace(probe, stages=(stage, *before, *added)))
            busy = self._book.ms(replace(probe, stages=(*before, *added)))
            busy -= self._book.ms(replace(probe, stages=before)) if before else 0.0
            return slowdown(alone, max(0.0, busy), together)

        linear = [(2.0 * b, factor(LINEAR, b)) for b in PAIR_BATCHES]
        attention = [factor(ATTENTION, b) for b in BACKGROUND_BATCHES]
        return Slowdown(curve(linear), statistics.mean(attention), 1.0)
