"""Find the smallest number that is enough, when more never hurts: double, then halve."""

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

    Both ends are numbers that were asked about, one apart.
    """
    fails, step = 0, min(start, limit)
    while not is_enough(step):
        fails = step
        if step == limit:
            return Bracket(fails, None)
        step = min(2 * step, limit)
    enough = step
    while enough - fails > 1:
        middle = (fails + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            fails = middle
    return Bracket(fails, enough)
