"""How often something is measured, so that its value comes back.

Three short rounds that agree are enough. Where they do not, the card was at its power limit for a
part of them, say, and `LONG_ROUNDS` longer ones are taken, `HOST_ROUNDS` of copies that the host
submits. What the host limits changes its speed within seconds, and three rounds in a row agree by
chance there: at least `SPREAD_ROUNDS` are taken, spread over the whole calibration. These numbers
are fixed: nothing is repeated until it happens to agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPEAT_BOUND_PCT = 3.0
ROUNDS = 3
LONG, LONG_ROUNDS, HOST_ROUNDS, SPREAD_ROUNDS = 3, 8, 24, 24
TWO_MEANS = 1.96 * math.sqrt(2.0)
"""In standard errors of a mean: 95 of 100 times, a second such mean differs by less."""


@dataclass(frozen=True)
class Rounds:
    """Hold what rounds gave: the mean of the last kind, how well it comes back, and all of them.

    `rounds_ms` are in the order of time, shorter ones first.
    """

    value_ms: float
    repeat_pct: float
    rounds_ms: tuple[float, ...]

    @property
    def repeatable(self) -> bool:
        """True when the value comes back within the bound."""
        return self.repeat_pct <= REPEAT_BOUND_PCT


def take_rounds(measure: Callable[[int], float], long_rounds: int = LONG_ROUNDS) -> Rounds:
    """Return the rounds of something that `measure(length)` measures once, in ms.

    Three short rounds come back within their range, in percent of their mean. Where that is too
    much, `long_rounds` follow.
    """
    short = [measure(1) for _ in range(ROUNDS)]
    mean = statistics.fmean(short)
    found = Rounds(mean, 100.0 * (max(short) - min(short)) / mean, tuple(short))
    if found.repeatable:
        return found
    return mean_of([measure(LONG) for _ in range(long_rounds)], short)


def mean_of(rounds: Sequence[float], before: Sequence[float] = ()) -> Rounds:
    """Return many rounds as one value, after others that did not agree.

    It comes back within what two such means differ by at most in 95 of 100 cases.
    """
    mean = statistics.fmean(rounds)
    error = statistics.stdev(rounds) / math.sqrt(len(rounds))
    return Rounds(mean, 100.0 * TWO_MEANS * error / mean, (*before, *rounds))
