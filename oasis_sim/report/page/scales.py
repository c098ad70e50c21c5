"""From values to places: linear and logarithmic scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.report.numbers import number

STEPS = (1, 2, 2.5, 5, 10)
MOST_TICKS = 5


@dataclass(frozen=True)
class Scale:
    """Map values from `low` to `high` onto places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high, where = self.low, self.high, value
        if self.log:
            low, high, where = math.log(low), math.log(high), math.log(value)
        return self.start + (where - low) / (high - low) * (self.end - self.start)


def scale(
    values: Sequence[float], start: float, end: float, *, log: bool = False, whole: bool = False
) -> Scale:
    """Return a scale that holds all values: from zero, or from the least value where `log`.

    `whole` puts ticks at whole numbers only.
    """
    if log:
        low, high = min(values), max(values)
        if low == high:
            low, high = low / 2, high * 2
        return Scale(low, high, start, end, True, _thinned(sorted(set(values))))
    high = max([*values, 0.0]) or 1.0
    step = max(_step(high), 1.0) if whole else _step(high)
    count = math.ceil(high / step - 1e-9)
    ticks = tuple(step * index for index in range(count + 1))
    return Scale(0.0, ticks[-1], start, end, False, ticks)


def _step(high: float) -> float:
    """Return a round step that makes few ticks up to `high`."""
    power = 10.0 ** math.floor(math.log10(high / MOST_TICKS))
    return next(power * step for step in STEPS if power * step * MOST_TICKS >= high * (1 - 1e-9))


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values of a logarithmic axis that stand far enough apart to be labelled."""
    if len(values) < 2:
        return tuple(values)
    span = math.log(values[-1] / values[0])
    kept = [values[0]]
    for value in values[1:]:
        if math.log(value / kept[-1]) >= span / 9.5:
            kept.append(value)
    return tuple(kept)


def tick(value: float) -> str:
    """Return the text of a tick: short, without digits that say nothing."""
    if value >= 10_000:
        return f"{value / 1000:,.10g}k"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.10g}" if rounded else number(0)
