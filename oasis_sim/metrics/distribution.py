"""Mean and percentiles of integer samples, exact and with multiplicities."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLES_FOR_P99 = 459
"""Fewest samples whose largest value exceeds the true p99 with 99 % probability (0.99^n < 1 %)."""

SIGNIFICANT_DIGITS = 9
SUMMED_TOGETHER = 65_536


def significant(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """Round to significant digits, so that results do not hang on the last bit of a sum."""
    return float(f"{value:.{digits - 1}e}")


def finite_or_none(value: float | None) -> float | None:
    """Return the rounded value, or None for a value that does not exist (None, NaN, infinite)."""
    if value is None or not math.isfinite(value):
        return None
    return significant(float(value))


@dataclass(frozen=True)
class Distribution:
    """Summarise samples; every statistic is None when there are no samples."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    samples: int

    @property
    def p99_has_too_few_samples(self) -> bool:
        """Tell whether p99 rests on too few samples to be trusted."""
        return self.samples < SAMPLES_FOR_P99

    def scaled(self, divisor: float) -> dict[str, Any]:
        """Return the statistics divided by `divisor`, as the mapping of `summary.json`."""
        names = ("mean", "p50", "p90", "p95", "p99")
        values: dict[str, float | None] = {name: getattr(self, name) for name in names}
        return {
            **{key: None if v is None else significant(v / divisor) for key, v in values.items()},
            "samples": self.samples,
            "p99_has_too_few_samples": self.p99_has_too_few_samples,
        }


def distribution(values: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> Distribution:
    """Fold integer samples, `counts[i]` of each `values[i]` (once each by default).

    Percentiles interpolate linearly between the two nearest ranks, as `numpy.percentile` and
    vLLM's benchmarks do: rank (n - 1) p / 100 of the sorted samples.
    """
    samples = np.asarray(values, dtype=np.int64)
    weights = np.ones_like(samples) if counts is None else np.asarray(counts, dtype=np.int64)
    samples, weights = samples[weights > 0], weights[weights > 0]
    total = int(weights.sum())
    if total == 0:
        return Distribution(None, None, None, None, None, 0)
    order = np.argsort(samples, kind="stable")
    ranked, ends = samples[order], np.cumsum(weights[order])
    weighted_sum = _exact_sum(samples, weights)
    p50, p90, p95, p99 = (percentile(ranked, ends, percent) for percent in (50, 90, 95, 99))
    return Distribution(weighted_sum / total, p50, p90, p95, p99, total)


def _exact_sum(samples: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> int:
    """Return the sum of products in whole numbers of any size, part by part."""
    total = 0
    for start in range(0, len(samples), SUMMED_TOGETHER):
        part = slice(start, start + SUMMED_TOGETHER)
        total += sum(map(int.__mul__, samples[part].tolist(), weights[part].tolist()))
    return total


def percentile(ranked: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], percent: int) -> float:
    """Interpolate one percentile of sorted values; `ends[i]` samples are at most `ranked[i]`."""
    rank, remainder = divmod((int(ends[-1]) - 1) * percent, 100)
    low = int(ranked[np.searchsorted(ends, rank, side="right")])
    if remainder == 0:
        return float(low)
    high = int(ranked[np.searchsorted(ends, rank + 1, side="right")])
    return low + (high - low) * remainder / 100


def mean_of(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values, summed exactly; None when there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None
