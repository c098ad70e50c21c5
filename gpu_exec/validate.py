"""Validation: simulated and measured step times of held-out configurations, side by side.

What predicts and what measures are arguments, so that the folding is tested without a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gpu_exec.compare import simulated_stage_ms
from gpu_exec.matrix import DENSE, ValidationCase
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed, TargetMissed, UsageError
from oasis_sim.units import PS_PER_MS

MIN_REPEATS = 5
MEDIAN_BOUND_PCT = 3.0
MAX_BOUND_PCT = 8.0
STEP_TIME = "step_time"
UNIT = "ms"


@dataclass(frozen=True)
class Measurement:
    """Hold repeats of one case: mean ms per step, and per stage, of each repeat."""

    step_ms: tuple[float, ...]
    stage_ms: Mapping[str, tuple[float, ...]]
    bytes_moved: int


@dataclass(frozen=True)
class Row:
    """Compare one metric of one configuration."""

    config: Mapping[str, Any]
    metric: str
    unit: str
    simulated: float
    measured: float
    spread_pct: float
    error_pct: float


@dataclass(frozen=True)
class Summary:
    """Summarise the errors of the step time over the configurations.

    Repeatable are those whose own runs lie within the bound that the largest error is held to;
    of the others no prediction could be that close.
    """

    configs: int
    step_time_median_abs_error_pct: float
    step_time_max_abs_error_pct: float
    repeatable_configs: int = 0
    repeatable_step_time_max_abs_error_pct: float = 0.0


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
    """Return the row of the step time, then one for each stage that took measurable time."""
    if min(measured.step_ms) <= 0:
        raise RunFailed(f"{case.label()}: a step took no time; the measurement is broken")
    config = case.config()
    every = np.ones(schedule.steps, dtype=bool)
    simulated = float(schedule.sim_step_ps.mean()) / PS_PER_MS
    rows = [_row(config, STEP_TIME, simulated, measured.step_ms)]
    for stage, values in measured.stage_ms.items():
        known = all(part in schedule.stages for part in stage.split("+"))
        if known and min(values) > 0:
            value = simulated_stage_ms(schedule, stage, every)
            rows.append(_row(config, f"stage.{stage}", value, values))
    return tuple(rows)


def simulate_again(measured: Sequence[Row], predict: Predict) -> tuple[Row, ...]:
    """Return the rows of an earlier measurement beside what the simulator says now."""
    schedules: dict[ValidationCase, Schedule] = {}
    rows = []
    for row in measured:
        case = ValidationCase.from_config(row.config)
        if case not in schedules:
            schedules[case] = predict(case)
        schedule = schedules[case]
        stage = row.metric.removeprefix("stage.")
        every = np.ones(schedule.steps, dtype=bool)
        simulated = float(schedule.sim_step_ps.mean()) / PS_PER_MS
        if row.metric != STEP_TIME:
            simulated = simulated_stage_ms(schedule, stage, every)
        error = 100.0 * (simulated - row.measured) / row.measured
        rows.append(replace(row, simulated=simulated, error_pct=error))
    return tuple(rows)


def summarise(rows: Sequence[Row]) -> Summary:
    """Return median and maximum of the absolute error of the step time."""
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
    )


def check(summary: Summary) -> None:
    """Raise TargetMissed when the errors exceed the bounds."""
    median, worst = summary.step_time_median_abs_error_pct, summary.step_time_max_abs_error_pct
    if median > MEDIAN_BOUND_PCT or worst > MAX_BOUND_PCT:
        raise TargetMissed(
            f"step time is off by {median:.1f} % in the median (bound {MEDIAN_BOUND_PCT:g} %) and "
            f"by {worst:.1f} % at most (bound {MAX_BOUND_PCT:g} %) "
            f"over {summary.configs} configurations"
        )


def to_json(origin: Origin, rows: Sequence[Row], summary: Summary) -> dict[str, Any]:
    """Return the document of a validation file."""
    return {**asdict(origin), "rows": [asdict(row) for row in rows], "summary": asdict(summary)}


def table_lines(rows: Sequence[Row], summary: Summary) -> list[str]:
    """Return the step times as a text table with the summary below."""
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
    return lines


def spread_pct(values: Sequence[float]) -> float:
    """Return the range of repeats in percent of their median."""
    middle = statistics.median(values)
    return 100.0 * (max(values) - min(values)) / middle if middle > 0 else 0.0


def _row(config: Mapping[str, Any], metric: str, simulated: float, values: Sequence[float]) -> Row:
    measured = statistics.median(values)
    return Row(
        config=config,
        metric=metric,
        unit=UNIT,
        simulated=simulated,
        measured=measured,
        spread_pct=spread_pct(values),
        error_pct=100.0 * (simulated - measured) / measured,
    )
