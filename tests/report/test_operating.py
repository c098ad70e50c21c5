"""Operating points: what a user gets, what a GPU gives, which points none beats."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.metrics import summarise
from oasis_sim.report.operating import front, operating_point
from oasis_sim.report.step_window import step_window
from oasis_sim.report.timeline import write_timeline
from tests.factories import tiny_result

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


@given(PAIRS)
def test_the_front_is_what_no_point_beats(points: list[tuple[int, int]]) -> None:
    """A point is left out only for one that is as good in both values and better in one."""

    def beaten(one: tuple[int, int]) -> bool:
        return any(other[0] >= one[0] and other[1] >= one[1] and other != one for other in points)

    kept = [points[index] for index in front([(float(x), float(y)) for x, y in points])]
    assert sorted({point for point in points if not beaten(point)}) == kept


def test_a_point_says_what_the_summary_says() -> None:
    """Numbers are those of summary.json; a user's rate is the inverse of the mean TPOT."""
    summary: dict[str, Any] = summarise(tiny_result())
    found = operating_point(summary)
    assert (
        summary["throughput"]["output_tokens_per_s_per_gpu"]
        == (found["output_tokens_per_s_per_gpu"])
    )
    assert abs(found["output_tokens_per_s_per_user"] * found["tpot_ms_mean"] - 1000) < 1e-3
    link = summary["links"]["pcie_h2d"]
    assert link["bytes_per_step_mean"] == found["h2d_bytes_per_step"]
    free_ms = found["step_ms_mean"] - (found["transfer_wait_ms_per_step"] or 0.0)
    budget = link["limit_gb_per_s"] * 1e6 * free_ms
    assert abs(found["h2d_budget_bytes_per_step"] - budget) <= 1e-6 * budget


def test_a_window_holds_slices_of_one_step_within_its_ends() -> None:
    """Nothing starts before or ends after the window; no timeline, no window."""
    import json

    timeline = json.loads(write_timeline(tiny_result()))
    window = step_window(timeline)
    assert window is not None
    assert window["spans"]
    for span in window["spans"]:
        assert 0 <= span["start_us"]
        assert span["start_us"] + span["length_us"] <= window["length_us"] + 1e-6
    assert step_window({"traceEvents": []}) is None
