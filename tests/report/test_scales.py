"""Scales: every value has a place, ticks are few, round and inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.report.page.document import Axis, Curves, Line, Point
from oasis_sim.report.page.plain_plot import MOST_LISTED, plot
from oasis_sim.report.page.scales import scale, tick

POSITIVE = st.floats(1e-6, 1e12)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans())
def test_every_value_lies_between_the_ends(values: list[float], log: bool) -> None:
    """Places stay within the axis and keep the order of the values."""
    found = scale(values, 10.0, 110.0, log=log)
    places = [found.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 10.0 - 1e-6 <= places[0] <= places[-1] <= 110.0 + 1e-6


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans(), st.booleans())
def test_ticks_are_few_and_inside(values: list[float], log: bool, whole: bool) -> None:
    """Ticks ascend within the axis; where things are counted they are whole."""
    found = scale(values, 0.0, 1.0, log=log, whole=whole)
    assert 1 <= len(found.ticks) <= 11
    assert list(found.ticks) == sorted(set(found.ticks))
    assert all(-1e-9 <= found.at(each) <= 1 + 1e-9 for each in found.ticks)
    if whole and not log:
        assert all(float(each).is_integer() for each in found.ticks)


def test_nothing_still_has_an_axis() -> None:
    """Zeros alone give an axis from zero to one."""
    assert (0.0, 1.0) == (scale([0.0], 0, 9).low, scale([0.0], 0, 9).high)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.05, "0.05"), (2.5, "2.5"), (2500.0, "2,500"), (25000.0, "25k")],
)
def test_ticks_are_short(value: float, shown: str) -> None:
    """No digit that says nothing."""
    assert shown == tick(value)


LINE = st.lists(st.tuples(st.integers(1, 9), POSITIVE), min_size=1, max_size=9)


@given(st.lists(LINE, min_size=1, max_size=4))
def test_what_shares_a_place_of_a_plot_is_listed(lines: list[list[tuple[int, float]]]) -> None:
    """Every star of the grid is explained, with a value for each line that lies under it."""
    drawn = tuple(
        Line(f"line {index}", tuple(Point(x, y) for x, y in points))
        for index, points in enumerate(lines)
    )
    shown = plot(Curves(Axis("x"), Axis("y"), drawn))
    legend = next(index for index, text in enumerate(shown) if text == "  x: x")
    stars = "".join(shown[:legend]).count("*")
    listed = [text for text in shown[legend:] if text.startswith("    ")]
    assert bool(stars) == any("several lines at one place" in text for text in shown[legend:])
    assert min(stars, MOST_LISTED) == len([text for text in listed if ":" in text])


def test_equal_curves_can_be_read() -> None:
    """Where one curve hides the other, both values stand below."""
    dense = Line("dense", (Point(1, 100), Point(2, 200)))
    oasis = Line("oasis", (Point(1, 99), Point(2, 50)))
    shown = plot(Curves(Axis("requests"), Axis("tokens/s"), (dense, oasis)))
    assert "  * several lines at one place; each with its x and y:" == shown[-2]
    assert "    1: A 100, B 99" == shown[-1]
