"""The fewest prefill and decode nodes that meet the targets under the whole load.

What is used: more decode nodes never hurt; prefill is never sooner than without decode; a node that
is never chosen changes nothing; no number of prefill nodes paces decode better than the most of
them. That more prefill nodes never hurt is not used: hand-overs that meet on a decode node's NIC
can make it wrong. Nor that they never help the pace: decode nodes fetch from theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oasis_sim.plan.fleet import Bounds, Fewer, shortfall
from oasis_sim.plan.prober import Prober
from oasis_sim.report.between_nodes import nodes_text
from oasis_sim.report.numbers import counted

Pair = tuple[int, int]
"""Prefill and decode nodes."""


def cheapest(prober: Prober, bounds: Bounds, most: int, start: Pair = (1, 1)) -> Pair | str:
    """Return the pair with the fewest nodes, at most `most`, that meets every target.

    Of equals the one with fewer prefill nodes. The search begins at `start`. Where no pair is
    enough, say what is missing.
    """
    bounds = _useful(prober, bounds)
    first = _prefill_needed(prober, bounds, most, start[0])
    if isinstance(first, str):
        return first
    best: Pair | None = None
    last, slow, begin, checks = (first, bounds.decode[0]), 0, start[1], _Checks(prober, bounds)
    for prefill in range(first, bounds.prefill[1] + 1):
        total = most if best is None else sum(best) - 1
        limit = min(bounds.decode[1], total - prefill)
        if limit < bounds.decode[0]:
            break
        if limit <= slow and checks.slow_with_most(total, limit):
            break
        row = _Row(prober, prefill)
        found = None
        # Later rows are of use only if their largest pair is enough.
        if prefill == first or row.is_enough(limit):
            found = lowest(row.is_enough, bounds.decode[0], limit, begin, row.is_paced, row.guess)
        last, slow, begin = (prefill, limit), max(slow, row.slow), row.paced or begin
        best = best if found is None else (prefill, found)
        fails = limit if found is None else found - 1
        if fails >= bounds.decode[0] and prober.verdict(prefill, fails).spare_prefill:
            break
    if best is None:
        probe = prober.on_nodes(*last)
        spare = "; more prefill nodes would have nothing to do" if probe.spare_prefill else ""
        return f"missed with {nodes_text(*last)}: {shortfall(probe)}{spare}"
    return _least_around(prober, bounds, best)


def _useful(prober: Prober, bounds: Bounds) -> Bounds:
    """Return the bounds without nodes that no request would ever be given."""
    most = prober.most_useful
    prefill, decode = (
        (low, min(high, max(low, most))) for low, high in (bounds.prefill, bounds.decode)
    )
    return Bounds(prefill, decode)


class _Row:
    """Ask about decode nodes at one number of prefill nodes.

    `slow` is the largest number of decode nodes that lacked others of their kind, `paced` the
    smallest that did not (0: none).
    """

    def __init__(self, prober: Prober, prefill: int) -> None:
        self._prober, self._prefill = prober, prefill
        self.slow = self.paced = 0

    def is_enough(self, decode: int) -> bool:
        asked = self._prober.verdict(self._prefill, decode)
        if asked.lacks_decode_nodes:
            self.slow = max(self.slow, decode)
        else:
            self.paced = min(self.paced or decode, decode)
        return asked.met

    def guess(self, decode: int) -> int:
        """Return where to look after a number that fails."""
        return self._prober.nodes_for_load(self._prefill, decode)

    def is_paced(self, decode: int) -> bool:
        return not self._prober.verdict(self._prefill, decode).lacks_decode_nodes


class _Checks:
    """Look whether decode nodes are too few even with the most prefill nodes.

    Each time they are not, twice as many rows are asked before it is looked at again.
    """

    def __init__(self, prober: Prober, bounds: Bounds) -> None:
        self._prober, self._bounds = prober, bounds
        self._next, self._step = bounds.decode[1], 1

    def slow_with_most(self, total: int, decode: int) -> bool:
        """Tell whether no pair of up to `total` nodes, so many of them for decode, is enough."""
        if decode > self._next:
            return False
        prefill = min(self._bounds.prefill[1], total - self._bounds.decode[0])
        self._next, self._step = decode - self._step, 2 * self._step
        return self._prober.verdict(prefill, decode).lacks_decode_nodes


def _prefill_needed(prober: Prober, bounds: Bounds, most: int, start: int) -> int | str:
    """Return the fewest prefill nodes that could do if decode took no time at all.

    The search begins at `start`, or at as many as the prompts keep busy.
    """
    low, high = bounds.prefill[0], min(bounds.prefill[1], most - bounds.decode[0])
    nodes = prober.spec.disaggregation
    if prober.spec.concurrency is not None or nodes is None or nodes.faults:
        return low  # what arrives, or who prefills it, hangs on decode too
    # As many as the prompts keep busy: fewer can never be enough.
    fewer = max(low, int(min(low * prober.prefill_alone(low).prefill_share, high))) - 1
    found = lowest(
        lambda more: prober.prefill_alone(fewer + more).met, 1, high - fewer, start - fewer
    )
    if found is None:
        missing = shortfall(prober.prefill_alone(high))
        return f"missed by prefill alone with {counted(high, 'prefill node')}: {missing}"
    return fewer + found


def lowest(
    is_enough: Callable[[int], bool],
    low: int,
    high: int,
    start: int = 1,
    ask_most: Callable[[int], bool] = lambda _: False,
    guess: Callable[[int], int] = lambda _: 0,
) -> int | None:
    """Return the smallest number from `low` to `high` that is enough, None where none is.

    From `start` it goes up by doubling and halves what is left. After a number that fails and for
    which `ask_most` holds, `high` is asked: more may be of no use. Else a larger `guess` is asked
    once, and from there one less or more, two, four and so on.
    """
    fails, enough, number = low - 1, high + 1, min(max(start, low), high)
    likely = off = 0
    while enough - fails > 1:
        was_enough = is_enough(number)
        if was_enough:
            enough = number
        else:
            fails = number
        number = (fails + enough) // 2
        if fails >= low and enough > high:
            if ask_most(fails):
                number = high
            elif off:
                number, off = min(likely + off, high), 2 * off
            else:
                likely = min(guess(fails), high)
                number, off = (likely, 1) if likely > fails else (min(2 * fails, high), 0)
        elif off and was_enough and enough <= likely:
            number, off = max(likely - off, fails + 1), 2 * off
        elif fails >= low:
            number = min(2 * fails, number)
    return None if enough > high else enough


def _least_around(prober: Prober, bounds: Bounds, pair: Pair) -> Pair:
    """Return a pair whose neighbours with one node fewer were simulated, and fail."""
    for _, fewer in neighbours(pair, bounds):
        if prober.verdict(*fewer).met:
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
