"""How far two calibrations agree: every number of two profiles, by the time that it predicts.

Rates and efficiencies are compared as they are, since times are proportional to them. What is made
of small differences of large times is compared by the time it goes into: a slowdown by the time of
the work that it slows, the rates beside work and after it by transfers that outlast work, the parts
of selection by their sum, a fixed cost by the smallest transfer, the draft model by linear layers
and draft, what a step takes beyond its stages by that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpu_exec.calibration_points import (
    BACKGROUND_BATCHES,
    OUTLAST_SHARES,
    OVERLAP_SHARE,
    PAIR_BATCHES,
    REST_BATCHES,
    SELECTION_POINTS,
    TRANSFER_BATCH,
    TRANSFER_COUNTS,
)
from gpu_exec.probes import StepProbe
from oasis_sim.curve import Curve
from oasis_sim.engine.costs import CostModel
from oasis_sim.hardware import (
    EngineCosts,
    HardwareProfile,
    LinearEfficiency,
    Selection,
    Slowdown,
    Transport,
)
from oasis_sim.model import ModelShape
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_S

ENGINE = "gpu_exec"
CONTEXT = StepProbe((), REST_BATCHES[0]).context_tokens


@dataclass(frozen=True)
class Number:
    """Hold one number of two profiles, or the time it predicts, and how far they lie apart."""

    field: str
    first: float
    second: float

    @property
    def difference_pct(self) -> float:
        """Their difference in percent of the smaller."""
        return 100.0 * (max(self.first, self.second) / min(self.first, self.second) - 1.0)


class Comparison:
    """Compare two profiles of one engine; what a number alone does not give is the first's."""

    def __init__(self, first: HardwareProfile, second: HardwareProfile, model: ModelShape) -> None:
        """Compare nothing yet."""
        self._profiles = (first, second)
        self._costs = (first.engine(ENGINE), second.engine(ENGINE))
        self._model = model
        self._ideal = CostModel(first, ENGINE, model, load_scheme("oasis"), 1)

    def numbers(self) -> tuple[Number, ...]:
        """Return every number that calibration measures, of both profiles."""
        first, second = (
            dict(self._values(profile, costs))
            for profile, costs in zip(self._profiles, self._costs, strict=True)
        )
        return tuple(Number(field, found, second[field]) for field, found in first.items())

    def _values(self, profile: HardwareProfile, costs: EngineCosts) -> Iterator[tuple[str, float]]:
        yield "pcie.usable_bandwidth", profile.pcie.usable_bytes_per_s
        known = self._costs[0]
        for part in fields(LinearEfficiency):
            x = known.linear_efficiency.of(part.name).x
            curve = costs.linear_efficiency.of(part.name)
            yield from _points(f"linear_efficiency.{part.name}", curve, x, "rows")
        for name in ("attention_efficiency", "dense_attention_efficiency", "scan_efficiency"):
            yield from _points(name, getattr(costs, name), getattr(known, name).x, "bytes")
        yield "launch.gap", float(costs.launch.gap_ps)
        for rows in known.draft_layers.x:
            linear = self._linear_ps(round(rows))
            draft = costs.draft_layers.at(rows) * linear / self._model.layers
            yield f"draft_layers at {rows:g} rows, with linear layers", linear + draft
        for batch in REST_BATCHES:
            stages = self._foreground_ps(batch, dense=False)
            yield f"launch.step, {batch} requests", stages + costs.launch.step_ps
            stages = self._foreground_ps(batch, dense=True)
            yield f"launch.dense_step, {batch} requests", stages + costs.launch.dense_step_ps
        for batch, context in SELECTION_POINTS:
            time = self._selection_ps(costs.selection, batch, context)
            yield f"selection, {batch} requests of {context} tokens", time
        yield from self._selection_slowdown(costs.selection_slowdown)
        for name, transport in costs.transports.items():
            if name in TRANSFER_COUNTS:
                yield from self._transport(f"transports.{name}", transport, known.transport(name))

    # Times that a number goes into -----------------------------------------------------------

    def _foreground_ps(self, batch: int, *, dense: bool) -> float:
        """Return the linear layers and attention of a step."""
        cost, share = self._ideal, self._ideal.share
        rows = batch if dense else 2 * batch
        attended = batch * cost.scheme.attended_tokens_max * share.kv_bytes_layer
        efficiency = cost.costs.attention_efficiency
        if dense:
            attended = batch * CONTEXT * share.kv_bytes_layer
            efficiency = cost.costs.dense_attention_efficiency
        attention = attended * cost.hbm_ps_per_byte(efficiency.at(attended))
        stages = self._linear_ps(rows) + self._model.layers * attention
        return stages + cost.linear_ps(share.lm_head, batch)

    def _linear_ps(self, rows: int) -> float:
        """Return the linear layers of a step, without LM head."""
        cost, share = self._ideal, self._ideal.share
        layer = cost.linear_ps(share.qkv, rows) + cost.linear_ps(share.output_ffn, rows)
        return float(self._model.layers * layer)

    def _selection_ps(self, selection: Selection, batch: int, context: int) -> float:
        blocks = context // self._ideal.scheme.block_tokens
        heads = batch * self._model.kv_heads
        each = selection.per_head_ps + selection.per_candidate_ps * blocks
        return selection.fixed_ps + heads * each + selection.per_block_ps * blocks

    def _selection_slowdown(self, slowdown: Slowdown) -> Iterator[tuple[str, float]]:
        """Yield the time of linear layers and attention beside selection, in units of it alone."""
        field, cost = "selection_slowdown", self._ideal
        known = self._costs[0]
        for batch in PAIR_BATCHES:
            rows = 2 * batch
            layer = self._linear_ps(rows) / self._model.layers
            busy = self._selection_ps(known.selection, batch, CONTEXT) / layer
            yield f"{field}.linear at {rows} rows", beside(slowdown.linear.at(rows), busy)
        batch = BACKGROUND_BATCHES[0]
        attended = batch * cost.scheme.attended_tokens_max * cost.share.kv_bytes_layer
        time = attended * cost.hbm_ps_per_byte(known.attention_efficiency.at(attended))
        busy = min(1.0, self._selection_ps(known.selection, batch, CONTEXT) / time)
        yield f"{field}.attention", beside(slowdown.attention, busy)

    def _transport(
        self, field: str, transport: Transport, known: Transport
    ) -> Iterator[tuple[str, float]]:
        units = known.bytes_per_s.x
        for unit in units:
            rate, after = _rates(transport, unit)
            for share in OUTLAST_SHARES:
                moved = share * _rates(known, unit)[1]
                time = 1.0 + (moved - rate) / after
                yield f"{field}, {share:g} times as long as work, {unit:g} bytes", time
        moved = TRANSFER_BATCH * self._model.kv_heads * min(TRANSFER_COUNTS["copy_engine"])
        smallest = moved * units[0] / known.bytes_per_s.at(units[0]) * PS_PER_S
        yield f"{field}.fixed, {moved:g} units of {units[0]:g} bytes", transport.fixed_ps + smallest
        for rows in known.slowdown.linear.x:
            factor = transport.slowdown.linear.at(rows)
            yield f"{field}.slowdown.linear at {rows:g} rows", beside(factor, OVERLAP_SHARE)
        for stage in ("attention", "prediction"):
            factor = getattr(transport.slowdown, stage)
            yield f"{field}.slowdown.{stage}", beside(factor, OVERLAP_SHARE)
        for key in ("linear_covered", "qkv_slowdown"):
            factors, known_factors = getattr(transport, key), getattr(known, key)
            if factors is not None and known_factors is not None:
                yield from _points(f"{field}.{key}", factors, known_factors.x, "rows")


def _rates(transport: Transport, unit: float) -> tuple[float, float]:
    """Return a transport's bytes per second beside work and after it."""
    rate = transport.bytes_per_s.at(unit)
    return rate, rate * transport.idle_speedup.at(unit)


def beside(factor: float, busy: float) -> float:
    """Return the time of work beside a neighbour that is busy for `busy`, both in units of it."""
    return 1.0 + busy * (1.0 - 1.0 / factor)


def to_json(numbers: Sequence[Number], origin: dict[str, Any]) -> dict[str, Any]:
    """Return the document of such a comparison, the largest difference first in its summary."""
    worst = max(numbers, key=lambda number: number.difference_pct)
    return {
        **origin,
        "summary": {
            "numbers": len(numbers),
            "largest_difference_pct": worst.difference_pct,
            "largest": worst.field,
        },
        "numbers": [{**asdict(n), "difference_pct": n.difference_pct} for n in numbers],
    }


def _points(field: str, curve: Curve, x: Sequence[float], unit: str) -> Iterator[tuple[str, float]]:
    for value in x:
        yield f"{field} at {value:g} {unit}", curve.at(value)
