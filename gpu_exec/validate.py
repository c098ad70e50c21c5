"""Validation: simulated and measured step times of held-out configurations, side by side.

What predicts and what measures are arguments, so that the folding is tested without a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gpu_exec.compare import simulated_stage_ms
from gpu_exec.matrix import DENSE, ValidationCase
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed, TargetMissed, UsageError
from oasis_sim.text import counted
from oasis_sim.units import PS_PER_MS

MIN_REPEATS = 5
MEDIAN_BOUND_PCT = 3.0
MAX_BOUND_PCT = 8.0
STEP_TIME = "step_time"
STAGE = "stage."
UNIT = "ms"


@dataclass(frozen=True)
class Measurement:
    """Hold repeats of one case: mean ms per step, and per stage, of each repeat.

    `raw_ms` are the stages with the clocks in them, `clocked_ms` the steps that have clocks.
    """

    step_ms: tuple[float, ...]
    stage_ms: Mapping[str, tuple[float, ...]]
    bytes_moved: int
    raw_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    clocked_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """Compare one metric of one configuration.

    `clocked` was measured with the clocks in it: of a stage, and of the step that it was timed in.
    It is None in files that hold stages timed by events, as these had measured them.
    """

    config: Mapping[str, Any]
    metric: str
    unit: str
    simulated: float
    measured: float
    spread_pct: float
    error_pct: float
    clocked: float | None = None


@dataclass(frozen=True)
class StageErrors:
    """Summarise the errors of one stage over the configurations that have it."""

    median_abs_error_pct: float
    max_abs_error_pct: float
    rows: int


@dataclass(frozen=True)
class Summary:
    """Summarise the errors of the step time over the configurations, and of each stage.

    Repeatable are those whose own runs lie within the bound that the largest error is held to;
    of the others no prediction could be that close.
    """

    configs: int
    step_time_median_abs_error_pct: float
    step_time_max_abs_error_pct: float
    repeatable_configs: int = 0
    repeatable_step_time_max_abs_error_pct: float = 0.0
    stages: Mapping[str, StageErrors] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Say what was measured, when and how."""

    gpu: str
    driver: str
    date: str
    command: str
    commit: str


Predict = Callable[[ValidationCase], Schedule]
Measure = Callable[[Schedule, ValidationCase, int], Measurement]


def validate(
    cases: Sequence[ValidationCase],
    predict: Predict,
    measure: Measure,
    repeats: int = MIN_REPEATS,
    progress: Callable[[str], None] | None = None,
) -> tuple[Row, ...]:
    """Simulate and measure every case; raises RunFailed when bytes moved differ from scheduled."""
    if repeats < MIN_REPEATS:
        raise UsageError(f"validation needs {MIN_REPEATS} repeats or more, not {repeats}")
    rows: list[Row] = []
    for number, case in enumerate(cases, start=1):
        schedule = predict(case)
        measured = measure(schedule, case, repeats)
        scheduled = schedule.moves * schedule.unit_bytes
        if measured.bytes_moved != scheduled:
            raise RunFailed(
                f"{case.label()}: {measured.bytes_moved} of {scheduled} scheduled bytes were moved"
            )
        part = compare(schedule, case, measured)
        rows += part
        if progress is not None:
            step = part[0]
            progress(
                f"{number}/{len(cases)} {case.label()}: simulated {step.simulated:.2f} ms, "
                f"measured {step.measured:.2f} ms, error {step.error_pct:+.1f} %"
            )
    return tuple(rows)


def compare(schedule: Schedule, case: ValidationCase, measured: Measurement) -> tuple[Row, ...]:
    """Return the row of the step time, then one for each stage that took measurable time.

    A stage that the schedule gives nothing to do is not compared.
    """
    if min(measured.step_ms) <= 0:
        raise RunFailed(f"{case.label()}: a step took no time; the measurement is broken")
    config = case.config()
    every = np.ones(schedule.steps, dtype=bool)
    simulated = float(schedule.sim_step_ps.mean()) / PS_PER_MS
    rows = [_row(config, STEP_TIME, simulated, measured.step_ms, measured.clocked_ms)]
    for stage, values in measured.stage_ms.items():
        known = all(part in schedule.stages for part in stage.split("+"))
        value = simulated_stage_ms(schedule, stage, every) if known else 0.0
        if value > 0 and min(values) > 0:
            raw = measured.raw_ms.get(stage, ())
            rows.append(_row(config, f"{STAGE}{stage}", value, values, raw))
    return tuple(rows)


def simulate_again(measured: Sequence[Row], predict: Predict) -> tuple[Row, ...]:
    """Return the rows of an earlier measurement beside what the simulator says now.

    Those of stages that have nothing to do are left out.
    """
    schedules: dict[ValidationCase, Schedule] = {}
    rows = []
    for row in measured:
        case = ValidationCase.from_config(row.config)
        if case not in schedules:
            schedules[case] = predict(case)
        schedule = schedules[case]
        stage = row.metric.removeprefix(STAGE)
        every = np.ones(schedule.steps, dtype=bool)
        simulated = float(schedule.sim_step_ps.mean()) / PS_PER_MS
        if row.metric != STEP_TIME:
            simulated = simulated_stage_ms(schedule, stage, every)
            if simulated == 0:
                continue
        error = 100.0 * (simulated - row.measured) / row.measured
        rows.append(replace(row, simulated=simulated, error_pct=error))
    return tuple(rows)


def summarise(rows: Sequence[Row]) -> Summary:
    """Return median and maximum of the absolute error of the step time, and of each stage."""
    steps = [row for row in rows if row.metric == STEP_TIME]
    if not steps:
        raise UsageError("nothing was measured")
    errors = [abs(row.error_pct) for row in steps]
    repeatable = [abs(row.error_pct) for row in steps if row.spread_pct <= MAX_BOUND_PCT]
    return Summary(
        len(errors),
        statistics.median(errors),
        max(errors),
        len(repeatable),
        max(repeatable, default=0.0),
        {name.removeprefix(STAGE): _stage_errors(rows, name) for name in _stage_metrics(rows)},
    )


def _stage_metrics(rows: Sequence[Row]) -> list[str]:
    return sorted({row.metric for row in rows if row.metric.startswith(STAGE)})


def _stage_errors(rows: Sequence[Row], metric: str) -> StageErrors:
    errors = [abs(row.error_pct) for row in rows if row.metric == metric]
    return StageErrors(statistics.median(errors), max(errors), len(errors))


def check(summary: Summary) -> None:
    """Raise TargetMissed when the errors exceed the bounds."""
    median, worst = summary.step_time_median_abs_error_pct, summary.step_time_max_abs_error_pct
    if median > MEDIAN_BOUND_PCT or worst > MAX_BOUND_PCT:
        raise TargetMissed(
            f"step time is off by {median:.1f} % in the median (bound {MEDIAN_BOUND_PCT:g} %) and "
            f"by {worst:.1f} % at most (bound {MAX_BOUND_PCT:g} %) "
            f"over {counted(summary.configs, 'configuration')}"
        )


def to_json(origin: Origin, rows: Sequence[Row], summary: Summary) -> dict[str, Any]:
    """Return the document of a validation file."""
    return {**asdict(origin), "rows": [asdict(row) for row in rows], "summary": asdict(summary)}


def table_lines(rows: Sequence[Row], summary: Summary) -> list[str]:
    """Return the step times as a text table with the summary and the stages below."""
    head = f"{'batch':>5} {'context':>7} {'scheme':<8} {'ratio':>5} {'blk':>3} {'budget':>6} "
    head += (
        f"{'transport':<11} {'simulated ms':>12} {'measured ms':>11} {'spread %':>8} {'error %':>7}"
    )
    lines = [head]
    for row in rows:
        if row.metric != STEP_TIME:
            continue
        no_block = {"block_tokens": None} if row.config["scheme"] == DENSE else {}
        c = {
            key: "-" if value is None else value
            for key, value in {**row.config, **no_block}.items()
        }
        lines.append(
            f"{c['batch']:>5} {c['context_tokens']:>7} {c['scheme']:<8} {c['fetch_ratio']:>5} "
            f"{c['block_tokens']:>3} {c['budget_tokens']:>6} {c['transport']:<11} "
            f"{row.simulated:>12.2f} {row.measured:>11.2f} {row.spread_pct:>8.1f} "
            f"{row.error_pct:>+7.1f}"
        )
    lines.append(
        f"{summary.configs} configurations: median absolute error "
        f"{summary.step_time_median_abs_error_pct:.1f} %, largest "
        f"{summary.step_time_max_abs_error_pct:.1f} %; of the {summary.repeatable_configs} whose "
        f"runs repeat within {MAX_BOUND_PCT:g} %, largest "
        f"{summary.repeatable_step_time_max_abs_error_pct:.1f} %"
    )
    return [*lines, *stage_lines(summary)]


def stage_lines(summary: Summary) -> list[str]:
    """Return the errors of each stage as a text table, empty when none was timed."""
    if not summary.stages:
        return []
    head = f"{'stage':<22} {'configurations':>14} {'median error %':>14} {'largest %':>9}"
    return [
        "",
        head,
        *(
            f"{name:<22} {found.rows:>14} {found.median_abs_error_pct:>14.1f} "
            f"{found.max_abs_error_pct:>9.1f}"
            for name, found in summary.stages.items()
        ),
    ]


def spread_pct(values: Sequence[float]) -> float:
    """Return the range of repeats in percent of their median."""
    middle = statistics.median(values)
    return 100.0 * (max(values) - min(values)) / middle if middle > 0 else 0.0


def _row(
    config: Mapping[str, Any],
    metric: str,
    simulated: float,
    values: Sequence[float],
    clocked: Sequence[float],
) -> Row:
    measured = statistics.median(values)
    return Row(
        config=config,
        metric=metric,
        unit=UNIT,
        simulated=simulated,
        measured=measured,
        spread_pct=spread_pct(values),
        error_pct=100.0 * (simulated - measured) / measured,
        clocked=statistics.median(clocked) if clocked else None,
    )
