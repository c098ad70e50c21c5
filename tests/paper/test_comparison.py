"""Rows of published beside simulated numbers, and their errors."""

from __future__ import annotations

import io

import pytest

from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.present import write_comparisons
from oasis_sim.paper.published import Published, PublishedPoint, PublishedValue


def row(published: float | None, simulated: float | None) -> Row:
    """Return a row of one key."""
    return Row({"batch": 8}, "step_ms", "ms", published, simulated)


def test_error_is_relative_to_the_published_number() -> None:
    """Simulated 55 for a published 50 is 10 % too much."""
    assert row(50.0, 55.0).error_pct == pytest.approx(10.0)
    assert row(50.0, 45.0).error_pct == pytest.approx(-10.0)


@pytest.mark.parametrize(("published", "simulated"), [(None, 1.0), (1.0, None), (None, None)])
def test_no_error_without_both_numbers(published: float | None, simulated: float | None) -> None:
    """A missing number gives no error, not zero."""
    assert row(published, simulated).error_pct is None


def test_mean_error_counts_published_rows_only() -> None:
    """10 % and 20 % are 15 % on average, whatever else was simulated."""
    rows = (row(50.0, 55.0), row(50.0, 40.0), row(None, 7.0), row(50.0, None))
    assert Comparison("x", "X", rows).mape_pct == pytest.approx(15.0)


def test_no_mean_error_without_published_rows() -> None:
    """Nothing to compare with gives null."""
    assert Comparison("x", "X", (row(None, 1.0),)).mape_pct is None


def test_json_has_the_agreed_keys() -> None:
    """Name, rows and mean error; a row starts with its key columns."""
    document = Comparison("x", "X", (row(50.0, 55.0),), ("a note",)).to_json()
    assert list(document) == ["name", "rows", "mape_pct"]
    assert list(document["rows"][0])[:5] == ["batch", "metric", "unit", "published", "simulated"]


def test_beside_takes_units_in_order_and_leaves_gaps() -> None:
    """One row per metric, also for those that nobody published or simulated."""
    point = PublishedPoint.of("t", {"batch": 8}, "step_ms")
    published = Published("p", {point: PublishedValue(60.0, "ms", "quoted", "table")})
    rows = beside(published, "t", {"batch": 8}, {"rate": "1/s", "step_ms": "ms"}, {"step_ms": 59.0})
    assert [("rate", None, None), ("step_ms", 60.0, 59.0)] == [
        (item.metric, item.published, item.simulated) for item in rows
    ]


def test_tables_leave_out_rows_without_any_number() -> None:
    """What is neither published nor simulated is counted below the table; CSV holds it."""
    rows = tuple(
        Row({"layer": layer}, "agreement_pct", "percent", published, simulated)
        for layer, published, simulated in ((11, 9.0, 9.0), (12, None, None), (13, None, 8.0))
    )
    found = Comparison("fig6", "Figure 6", rows, ())
    table, text = io.StringIO(), io.StringIO()
    write_comparisons([found], "table", table)
    write_comparisons([found], "csv", text)
    shown = [line.split()[0] for line in table.getvalue().splitlines() if "agreement_pct" in line]
    assert shown == ["11", "13"]
    assert "in JSON and CSV only: 1" in table.getvalue()
    assert len(text.getvalue().splitlines()) == 1 + 3
