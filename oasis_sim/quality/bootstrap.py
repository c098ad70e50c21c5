"""Confidence intervals of means over neighbouring steps: the circular block bootstrap.

Steps of one text are not independent, so whole blocks of neighbours are drawn (Politis and Romano
1992, the circular form of Künsch's moving blocks). Percentile intervals at 95 %. They say how far
the mean would move on other stretches like this one, not on other texts or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

METHOD = "circular block bootstrap, percentile interval"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """Hold a mean and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """Return the three numbers by name."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


class BlockBootstrap:
    """Draw the same blocks of steps for every number, so that differences are paired."""

    def __init__(self, steps: int, *, resamples: int, seed: int) -> None:
        """Prepare ``resamples`` draws of ``steps`` steps, in blocks of about steps ** (1/3)."""
        self.block_steps = max(1, round(steps ** (1 / 3)))
        blocks = -(-steps // self.block_steps)
        starts = np.random.default_rng(seed).integers(0, steps, (resamples, blocks, 1))
        drawn = (starts + np.arange(self.block_steps)) % steps
        self._drawn = drawn.reshape(resamples, -1)[:, :steps]

    def estimate(self, values: NDArray[np.float64]) -> Estimate:
        """Return the mean of one value per step, float64 [steps], and its interval."""
        means = self.means(values)
        tail = 50 * (1 - CONFIDENCE)
        low, high = np.percentile(means, [tail, 100 - tail])
        return Estimate(float(values.mean()), float(low), float(high))

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of one value per step in each draw, float64 [resamples]."""
        return np.asarray(values[self._drawn].mean(axis=1))
