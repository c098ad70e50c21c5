"""Which fleet comes first, and which ones come equally first."""

from __future__ import annotations

from collections.abc import Sequence

from oasis_sim.plan.fleet import Fleet
from oasis_sim.report.numbers import counted

Costs = Sequence[float | None]
"""What a million output tokens of each fleet cost; None without a price."""


def is_by_cost(costs: Costs) -> bool:
    """Tell whether fleets are compared by cost: where all have a price."""
    return all(cost is not None for cost in costs)


def in_order(fleets: Sequence[Fleet], costs: Costs) -> list[Fleet]:
    """Return the fleets, best first: the cheapest where all have a price, else the fewest GPUs.

    Equals go by the HBM of a card, the smaller one first (head-room says nothing of what a card
    costs), then by its name, by head-room, by their order.
    """
    firsts = _firsts(fleets, costs)
    keys = [(first, *_tie_break(each)) for first, each in zip(firsts, fleets, strict=True)]
    return [fleets[index] for index in sorted(range(len(fleets)), key=lambda index: keys[index])]


def _firsts(fleets: Sequence[Fleet], costs: Costs) -> list[float]:
    """Return what decides before all else: the cost, or the number of GPUs."""
    by_cost = is_by_cost(costs)
    return [
        cost if by_cost and cost is not None else fleet.gpus
        for fleet, cost in zip(fleets, costs, strict=True)
    ]


def _tie_break(fleet: Fleet) -> tuple[int, str, float]:
    hbm_bytes = int(fleet.meets.summary["tiers"]["hbm"]["capacity_bytes"])
    return hbm_bytes, fleet.spec.profile, -(fleet.meets.tightest.head_room or 0.0)


def tied(ranked: Sequence[Fleet], costs: Costs) -> list[Fleet]:
    """Return the fleets that come equally first; none where the first one is alone."""
    firsts = _firsts(ranked, costs)
    equals = [each for each, first in zip(ranked, firsts, strict=True) if first == firsts[0]]
    return equals if len(equals) > 1 else []


def tie_sentence(equals: Sequence[Fleet], by_cost: bool) -> str:
    """Name the fleets that come equally first, and say how they are listed."""
    names = ", ".join(f"{each.spec.profile} with {each.spec.scheme.name}" for each in equals)
    which = "equal cost" if by_cost else f"{counted(equals[0].gpus, 'GPU')} each"
    cards = len({each.spec.profile for each in equals}) > 1
    choose = "; give --price-file to choose" if cards and not by_cost else ""
    return f"tie, {which}: {names}; listed by HBM of the card, name, head-room{choose}"
