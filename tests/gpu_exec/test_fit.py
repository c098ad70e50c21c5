"""From times to lines, shares and slowdowns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.fit import curve, line_through, rising_line, share, slowdown
from oasis_sim.hardware import Curve


@given(alone=st.floats(0.1, 100), factor=st.floats(1.0, 20.0), covered=st.floats(0.05, 0.95))
def test_slowdown_inverts(alone: float, factor: float, covered: float) -> None:
    """The factor comes back from the times that it causes."""
    busy = covered * alone * factor
    together = alone + busy * (1.0 - 1.0 / factor)
    assert pytest.approx(factor, rel=1e-6) == slowdown(alone, busy, together)


def test_slowdown_edges() -> None:
    """No effect gives 1, a full stop gives the largest factor, a longer neighbour the ratio."""
    assert 1.0 == slowdown(10.0, 5.0, 9.5)
    assert 1.0 == slowdown(10.0, 0.0, 10.5)
    assert 1000.0 == slowdown(10.0, 5.0, 15.0)
    assert pytest.approx(1.5) == slowdown(10.0, 99.0, 15.0)


def test_line_and_share() -> None:
    """Lines keep a positive fixed part or go through the origin; shares stay within (0, 1]."""
    line = line_through([1.0, 2.0, 3.0], [5.0, 7.0, 9.0])
    assert (pytest.approx(3.0), pytest.approx(2.0)) == (line.fixed, line.slope)
    assert line_through([1.0, 2.0], [1.0, 3.0]).fixed == 0.0
    assert rising_line([1.0, 2.0, 3.0], [5.0, 7.0, 9.0]) == line
    assert (4.0, 0.0) == (
        rising_line([1.0, 2.0], [5.0, 3.0]).fixed,
        rising_line([1.0, 2.0], [5.0, 3.0]).slope,
    )
    assert (1.0, 0.5) == (share(2.0, 1.0), share(1.0, 2.0))


def test_curve_sorts_and_merges() -> None:
    """Points come in any order; equal x keep their mean."""
    assert Curve((1.0, 2.0), (5.0, 8.0)) == curve([(2.0, 8.0), (1.0, 4.0), (1.0, 6.0)])
