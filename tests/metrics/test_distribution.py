"""Percentiles and means, against numpy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.metrics.distribution import (
    SAMPLES_FOR_P99,
    distribution,
    finite_or_none,
    mean_of,
    significant,
)

times_ps = st.integers(0, 10**15)


@given(st.lists(st.tuples(times_ps, st.integers(0, 50)), min_size=1, max_size=40))
def test_percentiles_equal_numpys_over_repeated_samples(pairs: list[tuple[int, int]]) -> None:
    """Weighted percentiles are those of the samples written out."""
    values = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs])
    written_out = np.repeat(values, counts)
    folded = distribution(values, counts)
    assert folded.samples == len(written_out)
    if not len(written_out):
        assert folded.p50 is None
        return
    for percent, found in ((50, folded.p50), (90, folded.p90), (99, folded.p99)):
        assert found == pytest.approx(np.percentile(written_out, percent), rel=1e-12)
    assert folded.mean == pytest.approx(float(written_out.mean()), rel=1e-12)


@given(st.lists(times_ps, min_size=1, max_size=200))
def test_percentiles_are_ordered_and_within_the_samples(values: list[int]) -> None:
    """p50, p90 and p99 rise and never leave the range of the samples."""
    folded = distribution(values)
    found = [folded.p50, folded.p90, folded.p99]
    assert found == sorted(found)
    assert min(values) <= found[0]
    assert found[-1] <= max(values)


def test_sums_beyond_64_bits_stay_exact() -> None:
    """A million gaps of a quarter hour do not overflow."""
    assert distribution([10**15], [10**6]).mean == 10**15


def test_no_samples_give_nothing_rather_than_nan() -> None:
    """Without samples every statistic is None."""
    scaled = distribution([]).scaled(1.0)
    assert scaled == {
        "mean": None,
        "p50": None,
        "p90": None,
        "p95": None,
        "p99": None,
        "samples": 0,
        "p99_has_too_few_samples": True,
    }


@pytest.mark.parametrize(
    ("samples", "too_few"), [(1, True), (SAMPLES_FOR_P99 - 1, True), (SAMPLES_FOR_P99, False)]
)
def test_p99_is_marked_below_459_samples(samples: int, too_few: bool) -> None:
    """The mark follows the number of samples, multiplicities included."""
    assert distribution([7], [samples]).p99_has_too_few_samples is too_few


def test_459_samples_are_the_fewest_that_pass_p99_with_99_percent() -> None:
    """The bound is where 0.99^n falls below 1 %."""
    assert 0.99**SAMPLES_FOR_P99 < 0.01 < 0.99 ** (SAMPLES_FOR_P99 - 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_not_a_number_becomes_none(value: float | None) -> None:
    """NaN and infinities never reach a report."""
    assert finite_or_none(value) is None


@given(st.floats(1e-300, 1e300))
def test_rounding_to_significant_digits_is_relative_and_stable(value: float) -> None:
    """Nine digits are kept, and rounding twice changes nothing."""
    rounded = significant(value)
    assert abs(rounded - value) <= abs(value) * 1e-8
    assert significant(rounded) == rounded


def test_mean_of_skips_what_is_not_finite() -> None:
    """Steps without a sparse row do not count."""
    assert mean_of([1.0, math.nan, 3.0]) == 2.0
    assert mean_of([math.nan]) is None
