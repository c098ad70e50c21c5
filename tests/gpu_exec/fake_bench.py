"""A card that follows a known cost model exactly, to test calibration without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu_exec.kernels.marks import EMPTY, Span, stage_sums
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
from oasis_sim.curve import Curve
from oasis_sim.engine.costs import CostModel
from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape
from oasis_sim.scheme import load_scheme, with_options

PS_PER_MS = 1e9
FRONT = (LINEAR, ATTENTION, SCAN, DRAFT)
STAGES = {"prediction": SCAN}
"""Stages that probes switch by another name."""


class FakeBench:
    """Answer probes from the engine `gpu_exec` of a profile, with relative noise."""

    def __init__(
        self,
        profile: HardwareProfile,
        model: ModelShape,
        noise: float = 0.0,
        load: float = 1.0,
        drag: float = 1.0,
    ) -> None:
        """Follow `profile`; answers vary by `noise`; transfers beside work take `load` times.

        Between clocks stages of the compute stream take `drag` times what they take without, but
        for the draft head.
        """
        self.card = Card("FAKE H200", "580.0", 132, 150_754_820_096, "no software")
        self._profile, self._model, self._noise = profile, model, noise
        self._random = np.random.default_rng(0)
        self._load, self._drag = load, drag
        self._scheme = load_scheme("oasis")
        self.asked: list[tuple[Probe, int]] = []

    def measure_ms(self, probe: Probe, length: int) -> float:
        """Return the model's time of a probe; longer rounds vary as much."""
        self.asked.append((probe, length))
        factor = 1.0 + self._noise * float(self._random.uniform(-1, 1))
        if isinstance(probe, GapProbe):
            return self._costs.launch.gap_ps / PS_PER_MS * factor
        if isinstance(probe, LinkProbe):
            return probe.size_bytes / 55e9 * 1e3 * factor
        if isinstance(probe, ReadProbe):
            return probe.size_bytes / 4.64e12 * 1e3 * factor
        if isinstance(probe, StageProbe):
            return self._stage(probe) * factor
        return self._step(probe) * factor

    @property
    def _costs(self):  # type: ignore[no-untyped-def]
        return self._profile.engine("gpu_exec")

    def _step(self, probe: StepProbe) -> float:
        cost, times = self._priced(probe)
        front = [s for s in probe.stages if s in FRONT]
        back = [s for s in probe.stages if s in (SELECTION, TRANSFER)]
        launch = cost.costs.launch
        total = sum(times[s] for s in front) + self._gaps(front) * self._gap_ps / PS_PER_MS
        if MIRROR in probe.stages:
            total += launch.step_ps / PS_PER_MS
        if probe.dense and {LINEAR, ATTENTION} <= set(front):
            unused = self._model.layers * self._gap_ps  # the simulator counts one for the scan
            total += (launch.dense_step_ps + unused) / PS_PER_MS
        if not front:
            return sum(times[s] for s in back)
        if TRANSFER in back:
            return self._beside_transfer(probe, cost, total, times[TRANSFER])
        if SELECTION in back:
            beside, linear = cost.costs.selection_slowdown, LINEAR in front
            factor = beside.linear.at(2 * probe.batch) if linear else beside.attention
            work = times[LINEAR if linear else ATTENTION]
            total += _beside(work, times[SELECTION], factor) - work
        return total

    def _beside_transfer(
        self, probe: StepProbe, cost: CostModel, total: float, busy: float
    ) -> float:
        """Return the time of a single kind of work beside a transfer."""
        if busy * self._load > total:
            first = total / self._model.layers
            return first + busy + (total - first) * (1.0 - 1.0 / self._load)
        beside = cost.transport.slowdown
        factor = {
            LINEAR: beside.linear.at(2 * probe.batch),
            ATTENTION: beside.attention,
            SCAN: beside.prediction,
        }[probe.stages[0]]
        return _beside(total, busy * self._load, factor)

    @property
    def _gap_ps(self) -> float:
        """The gap before a stage that no early launch hides."""
        launch = self._costs.launch
        return float(launch.gap_ps * launch.kernels_per_layer / 4)

    def _gaps(self, front: list[str]) -> int:
        """Count the gaps before stages of a layer: two groups of linear layers, attention, scan."""
        layer = sum({LINEAR: 2, ATTENTION: 1, SCAN: 1}.get(stage, 0) for stage in front)
        return layer * self._model.layers

    def _stage(self, probe: StageProbe) -> float:
        """Return what clocks around a stage say: they take time, and the stages take longer."""
        cost, times = self._priced(probe)
        gap_ns = cost.costs.launch.gap_ps / 1e3
        clock_ns, layers = gap_ns, 1 if probe.stage in ("lm_head", DRAFT) else self._model.layers
        drag = 1.0 if probe.stage in (SELECTION, DRAFT) else self._drag
        beside = {
            "qkv": cost.transport.qkv_slowdown,
            "output_ffn": cost.transport.linear_covered,
            ATTENTION: Curve.constant(cost.transport.slowdown.attention),
        }
        slower = beside.get(probe.stage)
        if slower is not None and TRANSFER in probe.stages:
            drag *= slower.at(2 * probe.batch)
        span = gap_ns + drag * times[STAGES.get(probe.stage, probe.stage)] * 1e6 / layers + clock_ns
        ticks = [tick for _ in range(layers) for tick in (0.0, span)]
        spans = [Span(probe.stage, 2 * i, 2 * i + 1, 1) for i in range(layers)]
        return stage_sums(
            [*spans, Span(EMPTY, 2 * layers, 2 * layers + 1, 1)], [*ticks, 0.0, clock_ns]
        ).net_ms[probe.stage]

    def _priced(self, probe: StepProbe) -> tuple[CostModel, dict[str, float]]:
        """Return the cost model of a probe and its stages in ms, all layers together."""
        scheme = with_options(
            self._scheme,
            block_tokens=probe.block_tokens,
            budget_tokens=probe.budget_tokens,
            transport=probe.transport,
        )
        cost = CostModel(self._profile, "gpu_exec", self._model, scheme, 1)
        layers, share = self._model.layers, cost.share
        rows = probe.batch if probe.dense else 2 * probe.batch
        qkv, ffn = (cost.linear_ps(part, rows) for part in (share.qkv, share.output_ffn))
        head = cost.linear_ps(share.lm_head, cost.head_rows(rows) if not probe.dense else rows)
        blocks = probe.context_tokens // probe.block_tokens
        attended = probe.batch * cost.scheme.attended_tokens_max * share.kv_bytes_layer
        efficiency = cost.costs.attention_efficiency.at(attended)
        if probe.dense:
            attended = probe.batch * probe.context_tokens * share.kv_bytes_layer
            efficiency = cost.costs.dense_attention_efficiency.at(attended)
        scan = probe.batch * blocks * cost.scan_bytes_per_block()
        heads = probe.batch * share.kv_heads
        moved = heads * probe.per_head * share.unit_bytes(cost.scheme)
        pick = cost.costs.selection
        select = pick.fixed_ps + heads * (pick.per_head_ps + pick.per_candidate_ps * blocks)
        select += pick.per_block_ps * blocks
        draft_kv = probe.batch * probe.context_tokens * share.draft_bytes_token(cost.scheme)
        draft_kv *= cost.hbm_ps_per_byte(cost.costs.dense_attention_efficiency.at(draft_kv))
        ps = {
            "qkv": layers * qkv,
            "output_ffn": layers * ffn,
            "lm_head": head,
            LINEAR: layers * (qkv + ffn) + head,
            ATTENTION: layers * attended * cost.hbm_ps_per_byte(efficiency),
            DRAFT: cost.costs.draft_layers.at(rows) * (qkv + ffn) + draft_kv,
            SCAN: layers * scan * cost.hbm_ps_per_byte(cost.costs.scan_efficiency.at(scan)),
            SELECTION: layers * select,
            TRANSFER: layers * (cost.transport.fixed_ps + moved * cost.transfer_ps_per_byte()),
        }
        return cost, {stage: time / PS_PER_MS for stage, time in ps.items()}


def _beside(alone: float, busy: float, factor: float) -> float:
    """Return when work that takes `alone` ends beside a neighbour busy for `busy`."""
    if busy / factor >= alone:
        return max(alone * factor, busy)
    return max(busy, alone + busy * (1.0 - 1.0 / factor))


def slower(profile: HardwareProfile, **changes: object) -> HardwareProfile:
    """Return the profile with parts of its engine `gpu_exec` changed."""
    costs = replace(profile.engine("gpu_exec"), **changes)  # type: ignore[arg-type]
    return replace(profile, engines={**profile.engines, "gpu_exec": costs})
