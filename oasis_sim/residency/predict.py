"""Predictors: where the target of a step comes from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.fileio import did_you_mean, printable
from oasis_sim.residency.rule import ResidencyRule, StepPath
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace, Order

PREVIOUS = "previous"
DRAFT = "draft"
CURRENT = "current"
ORACLE = "oracle"
BUILT_IN = (DRAFT, PREVIOUS, CURRENT, ORACLE)


def draft_order(trace: AttentionTrace, drafter: str | None = None) -> Order:
    """Return a drafter's orders uint16[T, L, H, M]; without a name, the first one stored.

    Raises InputError when the trace holds no such drafter.
    """
    if not trace.pred_order:
        raise InputError(
            "the trace holds no draft predictions",
            file=trace.name,
            field="pred_order",
            fix="use predictor previous, or record the trace with a drafter",
        )
    if drafter is None:
        return next(iter(trace.pred_order.values()))
    if drafter not in trace.pred_order:
        known = ", ".join(trace.drafters)
        raise InputError(
            f"the trace holds no drafter {printable(drafter, 60)!r}",
            file=trace.name,
            field="pred_order",
            fix=f"use one of {known}{did_you_mean(drafter, trace.drafters)}",
        )
    return trace.pred_order[drafter]


def accepted_drafts(trace: AttentionTrace, drafter: str | None = None) -> NDArray[np.uint8]:
    """Return which steps' drafts are the next token, uint8[T], for a drafter as `draft_order`."""
    draft_order(trace, drafter)
    return trace.accepted[drafter or next(iter(trace.pred_order))]


def target_source(
    trace: AttentionTrace, predictor: str, drafter: str | None = None
) -> tuple[Order, int]:
    """Return the orders a predictor reads, and how many steps before its use (1 or 0).

    Predictors: ``draft`` (with `drafter`, or the first stored), ``previous`` (the order that
    the true query of the step before had), ``oracle`` and ``current`` (the step's own order).
    """
    if predictor == DRAFT:
        return draft_order(trace, drafter), 1
    if predictor == PREVIOUS:
        return trace.use_order, 1
    if predictor in {CURRENT, ORACLE}:
        return trace.use_order, 0
    raise InputError(
        f"predictor {printable(predictor, 60)!r} is not known",
        fix=f"use one of {', '.join(BUILT_IN)}{did_you_mean(predictor, BUILT_IN)}",
    )


def recorded_path(trace: AttentionTrace, ahead: int) -> StepPath:
    """Return the path through a trace as recorded, with targets made `ahead` steps before."""
    rows = np.arange(trace.steps, dtype=np.int64)
    position = trace.position.astype(np.int64)
    source = np.maximum(rows - ahead, 0)
    return StepPath(rows, position, source, position[source] + ahead)


def check_stored_length(
    trace: AttentionTrace, orders: Order, rule: ResidencyRule, ahead: int
) -> None:
    """Raise InputError when stored orders are too short for the rule's choice.

    A step must name min(k, candidates) blocks that selection may choose; `ahead` is 1 for orders
    whose candidates are those of the next position.
    """
    position = trace.position.astype(np.int64)
    last = (position + ahead) // rule.block_tokens - rule.recent_blocks
    # The block that the next token completes may be missing from an order made one step ahead.
    last = np.minimum(last, position // rule.block_tokens - 1)
    wanted = np.minimum(rule.chosen_blocks, np.maximum(last - rule.sink_blocks + 1, 0))
    for step in range(trace.steps):
        row = orders[step]
        usable = (row >= rule.sink_blocks) & (row <= last[step]) & (row != NO_BLOCK)
        fewest = int(usable.sum(axis=-1).min())
        if fewest < wanted[step]:
            raise InputError(
                f"step {step} stores {fewest} of the {wanted[step]} blocks per head that a "
                f"choice of {rule.chosen_blocks} needs ({orders.shape[-1]} are stored)",
                file=trace.name,
                field="stored_blocks",
                fix=f"use a budget of at most {fewest} chosen blocks",
            )
