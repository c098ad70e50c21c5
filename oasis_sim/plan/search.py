"""Find the smallest number that is enough, when more never hurts: gallop, then bisect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """Hold the answer: the largest number that failed (0: none did), the smallest that is enough.

    `enough` is None when even the largest number allowed was too few.
    """

    fails: int
    enough: int | None


def smallest(is_enough: Callable[[int], bool], limit: int, start: int = 1) -> Bracket:
    """Return the bracket around the smallest number up to `limit` that is enough.

    The search begins at `start`, goes away from it in steps that double, and halves what is left.
    Both ends are numbers that were asked about, one apart.
    """
    first = min(start, limit)
    if is_enough(first):
        fails, enough = _gallop_down(is_enough, first)
    elif first == limit:
        return Bracket(limit, None)
    else:
        fails, found = _gallop_up(is_enough, first, limit)
        if found is None:
            return Bracket(limit, None)
        enough = found
    while enough - fails > 1:
        middle = (fails + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            fails = middle
    return Bracket(fails, enough)


def _gallop_down(is_enough: Callable[[int], bool], enough: int) -> tuple[int, int]:
    """Return a number that fails (0: none does) and one above it that is enough."""
    step = 1
    while enough > 1:
        lower = max(enough - step, 1)
        if not is_enough(lower):
            return lower, enough
        enough, step = lower, 2 * step
    return 0, enough


def _gallop_up(is_enough: Callable[[int], bool], fails: int, limit: int) -> tuple[int, int | None]:
    """Return a number that fails and one above it that is enough, None when none is."""
    step = 1
    while fails < limit:
        upper = min(fails + step, limit)
        if is_enough(upper):
            return fails, upper
        fails, step = upper, 2 * step
    return fails, None
