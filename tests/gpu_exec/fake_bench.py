"""A card that follows a known cost model exactly, to test calibration without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    SCAN,
    SELECTION,
    TRANSFER,
    Card,
    GapProbe,
    LinkProbe,
    Nodes,
    Probe,
    ReadProbe,
    StepProbe,
)
from oasis_sim.engine.costs import CostModel
from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape
from oasis_sim.scheme import load_scheme, with_options

PS_PER_MS = 1e9


class FakeBench:
    """Answer probes from the engine `gpu_exec` of a profile, with relative noise."""

    def __init__(
        self, profile: HardwareProfile, model: ModelShape, noise: float = 0.0, load: float = 1.0
    ) -> None:
        """Follow `profile`; answers vary by `noise`; transfers beside work take `load` times."""
        self.card = Card("FAKE H200", "580.0", 132, 150_754_820_096, "no software")
        self.nodes = Nodes(linear=10, attention=1)
        self._profile, self._model, self._noise = profile, model, noise
        self._random = np.random.default_rng(0)
        self._load = load
        self._scheme = load_scheme("oasis")
        self.asked: list[tuple[Probe, int]] = []

    def measure_ms(self, probe: Probe, length: int) -> float:
        """Return the model's time of a probe; longer rounds vary less."""
        self.asked.append((probe, length))
        factor = 1.0 + self._noise / length * float(self._random.uniform(-1, 1))
        if isinstance(probe, GapProbe):
            return self._costs.launch.gap_ps / PS_PER_MS * factor
        if isinstance(probe, LinkProbe):
            return probe.size_bytes / 55e9 * 1e3 * factor
        if isinstance(probe, ReadProbe):
            return probe.size_bytes / 4.64e12 * 1e3 * factor
        return self._step(probe) * factor

    @property
    def _costs(self):  # type: ignore[no-untyped-def]
        return self._profile.engine("gpu_exec")

    def _step(self, probe: StepProbe) -> float:
        scheme = with_options(
            self._scheme,
            block_tokens=probe.block_tokens,
            budget_tokens=probe.budget_tokens,
            transport=probe.transport,
        )
        cost = CostModel(self._profile, "gpu_exec", self._model, scheme, 1)
        times = self._times(probe, cost)
        front = [s for s in probe.stages if s in (LINEAR, ATTENTION, DRAFT)]
        back = [s for s in probe.stages if s in (SCAN, SELECTION, TRANSFER)]
        launch = cost.costs.launch
        extra = launch.dense_step_ps if probe.dense else launch.step_ps
        total = sum(times[s] for s in front)
        if LINEAR in front and ATTENTION in front:
            total += extra / PS_PER_MS
        if TRANSFER in back and SCAN in back:
            return _beside(times[SCAN], times[TRANSFER], cost.transport.slowdown.prediction)
        if not front:
            return sum(times[s] for s in back)
        if probe.pause_us:
            pause = self._model.layers * probe.pause_us / 1e3
            covered = cost.transport.linear_covered if TRANSFER in back else None
            slower = total if covered is None else total * covered.at(2 * probe.batch)
            return slower + pause
        if TRANSFER in back and times[TRANSFER] * self._load > total:
            first = total / self._model.layers
            return first + times[TRANSFER] + (total - first) * (1.0 - 1.0 / self._load)
        for stage, neighbour in (
            (TRANSFER, cost.transport.slowdown),
            (SCAN, cost.costs.prediction_slowdown),
            (SELECTION, cost.costs.selection_slowdown),
        ):
            if stage in back:
                linear = neighbour.linear.at(2 * probe.batch)
                factor = linear if LINEAR in front else neighbour.attention
                busy = times[stage] * (self._load if stage == TRANSFER else 1.0)
                total = _beside(total, busy, factor)
        return total

    def _times(self, probe: StepProbe, cost: CostModel) -> dict[str, float]:
        layers, share = self._model.layers, cost.share
        rows, gap = 2 * probe.batch, cost.costs.launch.gap_ps
        layer = cost.linear_ps(share.qkv, rows) + cost.linear_ps(share.output_ffn, rows)
        linear = layers * (layer + self.nodes.linear * gap) + cost.linear_ps(share.lm_head, rows)
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
        draft_kv = probe.batch * probe.context_tokens * share.draft_bytes_token(cost.scheme)
        draft_kv *= cost.hbm_ps_per_byte(cost.costs.dense_attention_efficiency.at(draft_kv))
        ps = {
            LINEAR: linear,
            ATTENTION: layers * (attended * cost.hbm_ps_per_byte(efficiency) + gap),
            DRAFT: cost.costs.draft_layers * layer + draft_kv,
            SCAN: layers * scan * cost.hbm_ps_per_byte(cost.costs.scan_efficiency.at(scan)),
            SELECTION: layers * select,
            TRANSFER: layers * (cost.transport.fixed_ps + moved * cost.transfer_ps_per_byte()),
        }
        return {stage: time / PS_PER_MS for stage, time in ps.items()}


def _beside(alone: float, busy: float, factor: float) -> float:
    """Return when work that takes `alone` ends beside a neighbour busy for `busy`."""
    if busy / factor >= alone:
        return max(alone * factor, busy)
    return max(busy, alone + busy * (1.0 - 1.0 / factor))


def slower(profile: HardwareProfile, **changes: object) -> HardwareProfile:
    """Return the profile with parts of its engine `gpu_exec` changed."""
    costs = replace(profile.engine("gpu_exec"), **changes)  # type: ignore[arg-type]
    return replace(profile, engines={**profile.engines, "gpu_exec": costs})
