"""From measured times to numbers of a cost model: shares, lines, slowdowns. Arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.hardware import Curve

LARGEST_SLOWDOWN = 1000.0
SMALLEST_SHARE = 1e-3


@dataclass(frozen=True)
class Line:
    """Hold y = fixed + slope x."""

    fixed: float
    slope: float


def middle_mean(times: Sequence[float]) -> float:
    """Return the mean of the middle half of the times: a quarter is left out at either end.

    Like the mean it moves little when some of the times are of another speed, where a median jumps;
    like the median it does not see single slow ones.
    """
    ordered = sorted(times)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def share(ideal: float, measured: float) -> float:
    """Return which part of the ideal rate was reached, within (0, 1]."""
    return min(1.0, max(SMALLEST_SHARE, ideal / measured))


def line_through(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line by least squares with fixed >= 0 and slope > 0.

    A negative fixed part is set to zero and the slope fitted through the origin.
    """
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    fixed = mean_y - slope * mean_x
    if fixed >= 0 and slope > 0:
        return Line(fixed, slope)
    through = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
    return Line(0.0, through)


def rising_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line that does not fall: as `line_through`, but level where the slope is negative."""
    low, high = sum(x) / len(x), sum(y) / len(y)
    rises = sum((a - low) * (b - high) for a, b in zip(x, y, strict=True)) > 0
    return line_through(x, y) if rises else Line(high, 0.0)


def slowdown(alone: float, busy: float, together: float) -> float:
    """Return the factor f by which work takes longer beside a neighbour.

    The work takes `alone` by itself and `together` beside a neighbour that is busy for `busy`
    of that time. In that time it progresses at 1/f: alone = together - busy + busy / f.
    """
    overlap = min(busy, together)
    if overlap <= 0:
        return 1.0
    done = alone - (together - overlap)
    if done <= overlap / LARGEST_SLOWDOWN:
        return LARGEST_SLOWDOWN
    return min(LARGEST_SLOWDOWN, max(1.0, overlap / done))


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return the curve through points in order of x; equal x keep their mean."""
    by_x: dict[float, list[float]] = {}
    for x, y in points:
        by_x.setdefault(x, []).append(y)
    xs = sorted(by_x)
    return Curve(tuple(xs), tuple(sum(by_x[x]) / len(by_x[x]) for x in xs))
