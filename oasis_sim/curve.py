"""Measured curves: a value at any point, interpolated between the points that were measured."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Interpolate linearly over log(x) between points, constant beyond the ends.

    `x` must be positive and strictly increasing; `y` has the same length.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.x or len(self.x) != len(self.y):
            raise ValueError("a curve needs points with an x and a y each")
        if self.x[0] <= 0 or any(b <= a for a, b in zip(self.x, self.x[1:], strict=False)):
            raise ValueError("x must be positive and increase from point to point")

    @classmethod
    def constant(cls, value: float) -> Curve:
        """Return the curve that has `value` everywhere."""
        return cls((1.0,), (value,))

    def at(self, x: float) -> float:
        """Return the value at `x`."""
        if x <= self.x[0]:
            return self.y[0]
        if x >= self.x[-1]:
            return self.y[-1]
        i = bisect_right(self.x, x)
        x0, x1 = self.x[i - 1], self.x[i]
        weight = math.log(x / x0) / math.log(x1 / x0)
        return self.y[i - 1] + weight * (self.y[i] - self.y[i - 1])
