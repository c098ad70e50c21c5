"""Validation: the matrix, the folding of repeats, the bounds and the file, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.matrix import ValidationCase, validation_matrix
from gpu_exec.validate import (
    Measurement,
    Origin,
    Summary,
    check,
    compare,
    simulate_again,
    spread_pct,
    summarise,
    table_lines,
    to_json,
    validate,
)
from gpu_exec.validation_file import read_validation
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed, TargetMissed, UsageError
from tests.gpu_exec.schedule_cases import Case, make_schedule

SIMULATED_MS = 1.0
"""What every synthetic schedule of `schedule_cases` predicts per step."""


def predict(case: ValidationCase) -> Schedule:
    """Return the same small schedule for every case."""
    return make_schedule(Case())


def measure_with(step_ms: float, lost_bytes: int = 0):  # type: ignore[no-untyped-def]
    """Return a measurer whose repeats lie around `step_ms`."""

    def measure(schedule: Schedule, case: ValidationCase, repeats: int) -> Measurement:
        steps = tuple(step_ms * (1 + 0.001 * i) for i in range(-(repeats // 2), repeats // 2 + 1))
        moved = schedule.moves * schedule.unit_bytes - lost_bytes
        return Measurement(steps, {"qkv": (0.2,) * repeats}, moved)

    return measure


def test_matrix_covers_what_it_must() -> None:
    """At least 16 distinct configurations span batch, context, ratio, block, budget, transport."""
    cases = validation_matrix()
    assert len(cases) == len(set(cases)) >= 16
    batches = {case.batch for case in cases}
    contexts = {case.context_tokens for case in cases}
    assert (8, 160, 4096, 32768) == (min(batches), max(batches), min(contexts), max(contexts))
    sparse = [case for case in cases if case.scheme != "dense"]
    assert {None, 0.0, 0.2} <= {case.fetch_ratio for case in sparse}
    assert {16, 32} <= {case.block_tokens for case in sparse}
    assert {1024, 2048, 4096} == {case.budget_tokens for case in sparse}
    assert {"sm_gather", "copy_engine", "naive"} == {case.transport for case in sparse}
    assert len(sparse) < len(cases)


def test_no_earlier_matrix_held_a_case() -> None:
    """What was measured before, and changed the model, cannot judge it."""
    folder = Path(__file__).parents[2] / "validation"
    earlier = {
        (row.config["batch"], row.config["context_tokens"])
        for name in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
        for row in read_validation(folder / f"h200-{name}.json")[1]
    }
    assert earlier
    assert set() == earlier & {(c.batch, c.context_tokens) for c in validation_matrix()}


def test_good_prediction_passes() -> None:
    """Predictions within the bounds give a summary that passes and the file's schema."""
    cases = validation_matrix()
    rows = validate(cases, predict, measure_with(1.02))
    summary = summarise(rows)
    check(summary)
    assert len(cases) == summary.configs
    assert pytest.approx(1.96, abs=0.01) == summary.step_time_median_abs_error_pct
    origin = Origin("GPU", "580", "2026-01-01", "oasis-sim validate --gpu", "abc")
    document = json.loads(json.dumps(to_json(origin, rows, summary), allow_nan=False))
    assert ["gpu", "driver", "date", "command", "commit", "rows", "summary"] == list(document)
    keys = ["config", "metric", "unit", "simulated", "measured", "spread_pct", "error_pct"]
    assert [*keys, "clocked"] == list(document["rows"][0])
    expected = {"configs", "step_time_median_abs_error_pct", "step_time_max_abs_error_pct"}
    assert expected <= set(document["summary"])
    stage = document["summary"]["stages"]["qkv"]
    assert {"median_abs_error_pct", "max_abs_error_pct", "rows"} == set(stage)
    assert len(cases) == document["summary"]["repeatable_configs"]


def test_stage_rows_follow_the_step() -> None:
    """Each timed stage gets a row of its own; untimed stages get none."""
    case = ValidationCase(8, 4096)
    schedule = make_schedule(Case())
    rows = compare(schedule, case, measure_with(1.0)(schedule, case, 5))
    assert ["step_time", "stage.qkv"] == [row.metric for row in rows]
    assert pytest.approx(-50.0) == rows[1].error_pct


@pytest.mark.parametrize(("median", "worst"), [(3.01, 4.0), (1.0, 8.01), (9.0, 9.0)])
def test_missed_bounds(median: float, worst: float) -> None:
    """A median above 3 % or any error above 8 % misses the target, exit code 4."""
    with pytest.raises(TargetMissed) as caught:
        check(Summary(16, median, worst))
    assert 4 == caught.value.exit_code


def test_bounds_are_inclusive() -> None:
    """Exactly 3 % in the median and 8 % at most pass."""
    check(Summary(16, 3.0, 8.0))


def test_lost_bytes_fail() -> None:
    """A measurement that moved fewer bytes than scheduled ends the validation."""
    with pytest.raises(RunFailed, match="scheduled bytes"):
        validate(validation_matrix(), predict, measure_with(1.0, lost_bytes=1))


def test_too_few_repeats() -> None:
    """Fewer than five repeats are refused."""
    with pytest.raises(UsageError, match="repeats"):
        validate(validation_matrix(), predict, measure_with(1.0), repeats=4)


def test_stage_that_took_no_time_has_no_row() -> None:
    """A stage measured as zero has no relative error and is left out."""
    case = ValidationCase(8, 4096)
    measured = Measurement((1.0,) * 5, {"qkv": (0.0,) * 5, "attention": (0.1,) * 5}, 0)
    rows = compare(make_schedule(Case()), case, measured)
    assert ["step_time", "stage.attention"] == [row.metric for row in rows]


def test_stage_with_nothing_to_do_has_no_row() -> None:
    """Where no move is scheduled, the empty launches of the transfer are not compared."""
    case, schedule = ValidationCase(8, 4096), make_schedule(Case())
    column = schedule.stages.index("transfer")
    idle = schedule.sim_stage_ps.copy()
    idle[:, column] = 0
    times = {"qkv": (0.2,) * 5, "transfer": (0.5,) * 5}
    measured = Measurement((1.0,) * 5, times, 0, raw_ms={"qkv": (0.3,) * 5}, clocked_ms=(1.5,) * 5)
    busy, quiet = (
        compare(found, case, measured) for found in (schedule, replace(schedule, sim_stage_ps=idle))
    )
    assert ["step_time", "stage.qkv", "stage.transfer"] == [row.metric for row in busy]
    assert ["step_time", "stage.qkv"] == [row.metric for row in quiet]
    assert [1.5, 0.3, None] == [row.clocked for row in busy]
    again = simulate_again(busy, lambda case: replace(schedule, sim_stage_ps=idle))
    assert ["step_time", "stage.qkv"] == [row.metric for row in again]


def test_stages_are_summarised() -> None:
    """Each stage has the median and the largest of its errors, over the rows that have it."""
    case, schedule = ValidationCase(8, 4096), make_schedule(Case())
    rows = [
        row
        for ms in (0.1, 0.2, 0.4)
        for row in compare(schedule, case, Measurement((1.0,) * 5, {"qkv": (ms,) * 5}, 0))
    ]
    found = summarise(rows).stages
    assert {"qkv"} == set(found)
    assert (3, pytest.approx(50.0), pytest.approx(75.0)) == (
        found["qkv"].rows,
        found["qkv"].median_abs_error_pct,
        found["qkv"].max_abs_error_pct,
    )


@given(values=st.lists(st.floats(0.5, 100), min_size=5, max_size=9), scale=st.floats(0.1, 50))
def test_spread_is_relative(values: list[float], scale: float) -> None:
    """The spread does not change when all times are scaled."""
    assert pytest.approx(spread_pct(values), abs=1e-6) == spread_pct([v * scale for v in values])


def test_table_and_config() -> None:
    """The table has one line per configuration; dense rows state no sparse options."""
    cases = (ValidationCase(8, 4096, fetch_ratio=None), ValidationCase(8, 4096, scheme="dense"))
    rows = validate(cases, predict, measure_with(1.0))
    lines = table_lines(rows, summarise(rows))
    assert 1 + len(cases) + 1 + 3 == len(lines)
    assert ["qkv", "2", "50.0", "50.0"] == lines[-1].split()
    assert "all" in lines[1]
    assert rows[-1].config["transport"] is None
    assert ["8", "4096", "dense", "-", "-", "-", "-"] == lines[2].split()[:7]
    assert replace(cases[0]).label() != cases[1].label()
