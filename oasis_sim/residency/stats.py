"""What a trace says by itself: misses, overlap and captured mass for a budget and a cap.

The meaning of every number is fixed (docs/trace-stats.md): block 0 and the two newest blocks are
always resident and count in the budget, so k = K / b - 3 blocks are chosen per layer and KV head
from blocks 1 .. p // b - 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from oasis_sim.errors import InputError
from oasis_sim.residency.predict import (
    CURRENT,
    DRAFT,
    PREVIOUS,
    check_stored_length,
    draft_order,
    recorded_path,
)
from oasis_sim.residency.rule import ResidencyLog, ResidencyRule
from oasis_sim.residency.simulate import simulate_path, total_mass
from oasis_sim.trace.mass import decode_mass
from oasis_sim.trace.part import select_part
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace, Order

ORACLE_MASS = "oracle_mass"
BEST_SETS = (ORACLE_MASS, CURRENT)
SINK_BLOCKS = 1
RECENT_BLOCKS = 2


@dataclass(frozen=True)
class StatsRow:
    """Report one predictor, budget and cap; means over steps 1 .. T-1 and all heads.

    ``needed``, ``admitted``, ``overlap`` and ``new_blocks`` are fractions of the chosen blocks
    k; ``attention_mass`` is captured mass, None when the trace holds none.
    """

    budget_tokens: int
    predictor: str
    fetch_ratio: float | None = None
    needed: float | None = None
    admitted: float | None = None
    overlap: float | None = None
    attention_mass: float | None = None
    new_blocks: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object: the fields that its predictor reports."""
        row: dict[str, Any] = {"budget_tokens": self.budget_tokens, "predictor": self.predictor}
        if self.fetch_ratio is not None:
            row |= {
                "fetch_ratio": self.fetch_ratio,
                "needed": self.needed,
                "admitted": self.admitted,
                "overlap": self.overlap,
                "attention_mass": self.attention_mass,
            }
        else:
            row |= {"attention_mass": self.attention_mass, "new_blocks": self.new_blocks}
        return row


def stats_rule(trace: AttentionTrace, budget_tokens: int, fetch_ratio: float) -> ResidencyRule:
    """Return the rule of a budget and a cap: C = floor(ratio * K / b), the decimal ratio exact.

    Raises InputError when the budget is no multiple of the block, leaves no block to choose, or
    the ratio lies outside 0 .. 1.
    """
    blocks, rest = divmod(budget_tokens, trace.block_tokens)
    if rest:
        raise InputError(
            f"{budget_tokens} tokens are no multiple of the trace's block of {trace.block_tokens}",
            field="budget",
            fix=f"use {blocks * trace.block_tokens} or {(blocks + 1) * trace.block_tokens}",
        )
    chosen = blocks - SINK_BLOCKS - RECENT_BLOCKS
    if chosen < 1:
        raise InputError(
            f"{budget_tokens} tokens leave no block to choose",
            field="budget",
            fix=f"use at least {(SINK_BLOCKS + RECENT_BLOCKS + 1) * trace.block_tokens}",
        )
    if not 0.0 <= fetch_ratio <= 1.0:
        raise InputError(f"{fetch_ratio} is out of range", field="fetch-ratio", fix="use 0 to 1")
    cap = int(Fraction(str(fetch_ratio)) * blocks)
    return ResidencyRule(chosen, chosen, cap, SINK_BLOCKS, RECENT_BLOCKS, trace.block_tokens)


def trace_stats(
    trace: AttentionTrace,
    budgets: Sequence[int],
    fetch_ratios: Sequence[float],
    predictors: Sequence[str] | None = None,
) -> list[StatsRow]:
    """Report every budget, predictor and ratio; predictors default to all the trace allows.

    Predictors: ``oracle_mass`` and ``current`` (the best sets known at the step itself, no
    cap), ``previous``, ``draft`` (the first drafter) and drafters by name. Only layers that
    attend to the whole context count. Raises InputError on what the trace cannot answer.
    """
    trace = full_attention_part(trace)
    if trace.steps < 2:
        raise InputError("statistics need 2 or more steps", file=trace.name, field="steps")
    names = default_predictors(trace) if predictors is None else list(predictors)
    rows = []
    for budget in budgets:
        for name in names:
            if name in BEST_SETS:
                rows.append(_best_set_row(trace, budget, name))
            else:
                rows += [_predictor_row(trace, budget, name, ratio) for ratio in fetch_ratios]
    return rows


def check_budget(trace: AttentionTrace, budget_tokens: int, predictors: Sequence[str]) -> None:
    """Raise InputError when a trace stores too few blocks for a budget and its predictors."""
    trace = full_attention_part(trace)
    rule = stats_rule(trace, budget_tokens, 1.0)
    check_stored_length(trace, trace.use_order, rule, 0)
    for name in predictors:
        if name not in {*BEST_SETS, PREVIOUS}:
            orders = draft_order(trace, None if name == DRAFT else name)
            check_stored_length(trace, orders, rule, 1)


def default_predictors(trace: AttentionTrace) -> list[str]:
    """Return all predictors that a trace can answer."""
    oracle = [ORACLE_MASS] if trace.mass is not None else []
    return [*oracle, CURRENT, PREVIOUS, *trace.drafters]


def full_attention_part(trace: AttentionTrace) -> AttentionTrace:
    """Return the trace without its sliding-window layers.

    Raises InputError when no layer is left.
    """
    layers = list(trace.full_layers)
    if not layers:
        raise InputError(
            "no recorded layer attends to the whole context",
            file=trace.name,
            field="layer_span",
            fix="record full-attention layers",
        )
    return trace if len(layers) == trace.layers else select_part(trace, layers=layers)


def _predictor_row(trace: AttentionTrace, budget: int, name: str, ratio: float) -> StatsRow:
    """Run residency one step ahead and average its log."""
    rule = stats_rule(trace, budget, ratio)
    check_stored_length(trace, trace.use_order, rule, 0)
    if name == PREVIOUS:
        orders = trace.use_order
    else:
        orders = draft_order(trace, None if name == DRAFT else name)
        check_stored_length(trace, orders, rule, 1)
    path = recorded_path(trace, ahead=1)
    log = simulate_path(trace.use_order, orders, path, rule, mass=trace.mass)
    share = 1.0 / rule.chosen_blocks
    return StatsRow(
        budget_tokens=budget,
        predictor=name,
        fetch_ratio=ratio,
        needed=float(log.needed[1:].mean()) * share,
        admitted=float(log.admitted[1:].mean()) * share,
        overlap=float(log.overlap[1:].mean()) * share,
        attention_mass=_captured(trace, log),
    )


def _best_set_row(trace: AttentionTrace, budget: int, name: str) -> StatsRow:
    """Average the sets that the current step itself would choose."""
    rule = stats_rule(trace, budget, 1.0)
    if name == ORACLE_MASS:
        order = _mass_order(trace, rule)
    else:
        order = trace.use_order
        check_stored_length(trace, order, rule, 0)
    path = recorded_path(trace, ahead=0)
    log = simulate_path(order, order, path, rule, mass=trace.mass)
    return StatsRow(
        budget_tokens=budget,
        predictor=name,
        attention_mass=_captured(trace, log),
        new_blocks=float(log.needed[1:].mean()) / rule.chosen_blocks,
    )


def _captured(trace: AttentionTrace, log: ResidencyLog) -> float | None:
    """Return the mean attention mass that was read.

    Of a mass that is no share, since a group's heads are joined by their largest, the share of all;
    heads that hold none in a step do not count then.
    """
    if log.mass is None or trace.mass is None:
        return None
    found = log.mass[1:]
    if (trace.meta.get("aggregation") or {}).get("mass", "mean") != "mean":
        whole = total_mass(trace.mass, np.arange(1, trace.steps))
        found = found[whole > 0] / whole[whole > 0]
    return float(found.mean()) if found.size else None


def _mass_order(trace: AttentionTrace, rule: ResidencyRule) -> Order:
    """Return the k candidates of largest mass per step and head, ties to the lower id."""
    if trace.mass is None:
        raise InputError(
            f"predictor {ORACLE_MASS} needs attention mass, which the trace does not hold",
            file=trace.name,
            field="mass",
            fix="use predictor current, or record the trace with mass",
        )
    blocks = np.arange(trace.mass.shape[-1])
    order = np.full((*trace.mass.shape[:3], rule.chosen_blocks), NO_BLOCK, dtype=np.uint16)
    for step, position in enumerate(trace.position.tolist()):
        candidate = (blocks >= rule.sink_blocks) & (blocks <= rule.last_candidate(position))
        mass = np.where(candidate, decode_mass(trace.mass[step]), -1.0)
        kept = min(rule.chosen_blocks, int(candidate.sum()))
        order[step, :, :, :kept] = np.argsort(-mass, axis=-1, kind="stable")[:, :, :kept]
    return order
