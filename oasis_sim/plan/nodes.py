"""The fewest prefill and decode nodes that meet the targets under the whole load.

What is used: more decode nodes never hurt; prefill is never sooner than without decode; a prefill
node that is never chosen changes nothing; no number of prefill nodes paces decode better than the
most of them. That more prefill nodes never hurt is not used: hand-overs that meet on a decode
node's NIC can make it wrong. Nor that they never help the pace: decode nodes fetch from theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oasis_sim.plan.fleet import Bounds, Fewer, shortfall
from oasis_sim.plan.probe import Prober
from oasis_sim.plan.search import smallest
from oasis_sim.report.between_nodes import nodes_text
from oasis_sim.report.numbers import counted

Pair = tuple[int, int]
"""Prefill and decode nodes."""


def cheapest(prober: Prober, bounds: Bounds, most: int, start: int = 1) -> Pair | str:
    """Return the pair with the fewest nodes, at most `most`, that meets every target.

    Of equals the one with fewer prefill nodes. The search over decode nodes begins at `start`.
    Where no pair is enough, say what is missing.
    """
    first = _prefill_needed(prober, bounds, most)
    if isinstance(first, str):
        return first
    best: Pair | None = None
    last, slow = (first, bounds.decode[0]), 0
    for prefill in range(first, bounds.prefill[1] + 1):
        total = most if best is None else sum(best) - 1
        limit = min(bounds.decode[1], total - prefill)
        if limit < bounds.decode[0]:
            break
        if limit <= slow and _slow_with_most(prober, bounds, total, limit):
            break
        row = _Row(prober, prefill)
        # Later rows are of use only if their largest pair is enough.
        begin = start if prefill == first else limit
        found = lowest(row.is_enough, bounds.decode[0], limit, begin)
        last, slow = (prefill, limit), max(slow, row.slow)
        best = best if found is None else (prefill, found)
        fails = limit if found is None else found - 1
        if fails >= bounds.decode[0] and prober.on_nodes(prefill, fails).spare_prefill:
            break
    if best is None:
        probe = prober.on_nodes(*last)
        spare = "; more prefill nodes would have nothing to do" if probe.spare_prefill else ""
        return f"missed with {nodes_text(*last)}: {shortfall(probe)}{spare}"
    return _least_around(prober, bounds, best)


class _Row:
    """Ask about decode nodes at one number of prefill nodes.

    `slow` is the largest number of decode nodes that lacked others of their kind.
    """

    def __init__(self, prober: Prober, prefill: int) -> None:
        self._prober, self._prefill = prober, prefill
        self.slow = 0

    def is_enough(self, decode: int) -> bool:
        probe = self._prober.on_nodes(self._prefill, decode)
        if probe.lacks_decode_nodes:
            self.slow = max(self.slow, decode)
        return probe.met


def _slow_with_most(prober: Prober, bounds: Bounds, total: int, decode: int) -> bool:
    """Tell whether so many decode nodes are too few even with the most prefill nodes.

    No pair of up to `total` nodes has more of these.
    """
    prefill = min(bounds.prefill[1], total - bounds.decode[0])
    return prober.on_nodes(prefill, decode).lacks_decode_nodes


def _prefill_needed(prober: Prober, bounds: Bounds, most: int) -> int | str:
    """Return the fewest prefill nodes that could do if decode took no time at all."""
    low, high = bounds.prefill[0], min(bounds.prefill[1], most - bounds.decode[0])
    nodes = prober.spec.disaggregation
    if prober.spec.concurrency is not None or nodes is None or nodes.faults:
        return low  # what arrives, or who prefills it, hangs on decode too
    found = lowest(lambda number: prober.prefill_alone(number).met, low, high)
    if found is None:
        missing = shortfall(prober.prefill_alone(high))
        return f"missed by prefill alone with {counted(high, 'prefill node')}: {missing}"
    return found


def lowest(is_enough: Callable[[int], bool], low: int, high: int, start: int = 1) -> int | None:
    """Return the smallest number from `low` to `high` that is enough, None where none is."""
    bracket = smallest(
        lambda place: is_enough(low - 1 + place), high - low + 1, max(1, start - low + 1)
    )
    return None if bracket.enough is None else low - 1 + bracket.enough


def _least_around(prober: Prober, bounds: Bounds, pair: Pair) -> Pair:
    """Return a pair whose neighbours with one node fewer were simulated, and fail."""
    for _, fewer in neighbours(pair, bounds):
        if prober.on_nodes(*fewer).met:
            return _least_around(prober, bounds, fewer)
    return pair


def neighbours(pair: Pair, bounds: Bounds) -> Iterator[tuple[str, Pair]]:
    """Yield the pairs of one node fewer within the bounds, and the kind of that node."""
    prefill, decode = pair
    if prefill > bounds.prefill[0]:
        yield "prefill node", (prefill - 1, decode)
    if decode > bounds.decode[0]:
        yield "decode node", (prefill, decode - 1)


def fewer_of(prober: Prober, bounds: Bounds, pair: Pair) -> tuple[Fewer, ...]:
    """Return the neighbours of one node fewer, as simulated."""
    return tuple(
        Fewer(kind, f"{fewer[0]}:{fewer[1]}", prober.on_nodes(*fewer))
        for kind, fewer in neighbours(pair, bounds)
    )
