"""Compare a replay with its simulation: step by step, stage by stage, and the whole window.

Times are compared where they were measured on a GPU, of steps with rows of one kind. Collectives
are part of the simulated output and FFN; `left_out` gives times without them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_exec.executor import StepRun
from oasis_sim.engine.schedule import Schedule
from oasis_sim.units import PS_PER_MS

ALL_REDUCE = "all_reduce"
"""The row of the collectives, which output and FFN contain too."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepRow:
    """Compare one step: scheduled against executed, simulated against measured.

    `repeats_ms` are the measurements that `measured_ms` is the median of.
    """

    step: int
    rows: int
    units_scheduled: int
    units_moved: int
    bytes_scheduled: int
    bytes_moved: int
    wrong_units: int
    sums_checked: int
    wrong_sums: int
    simulated_ms: float
    measured_ms: float
    repeats_ms: tuple[float, ...]


@dataclass(frozen=True)
class StageRow:
    """Compare one stage, in ms per step; None where it was not timed or may not be compared.

    A stage that the schedule gives nothing to do is not compared. `clocked_ms` is what was
    measured with the clocks in it: of a stage, and of the step that all of them were timed in.
    """

    stage: str
    simulated_ms: float
    measured_ms: float | None
    error_pct: float | None
    clocked_ms: float | None = None


def error_pct(simulated: float, measured: float) -> float | None:
    """Return the simulation's error in percent of the measurement, None without one."""
    return None if measured <= 0 else 100.0 * (simulated - measured) / measured


def collective_ms(schedule: Schedule) -> npt.NDArray[np.float64]:
    """Return the simulated ms of each step's collectives, float64[S]."""
    found = schedule.meta.get("collective_ps", [0] * schedule.steps)
    return np.asarray(found, dtype=np.float64) / PS_PER_MS


def decode_only(schedule: Schedule) -> Bools:
    """Return which steps hold nothing but rows of one kind: no prefill, not dense and sparse."""
    pure: Bools = (schedule.rows == 0) | (schedule.dense_rows == 0)
    if "prefill" in schedule.stages:
        pure = pure & (schedule.sim_stage_ps[:, schedule.stages.index("prefill")] == 0)
    return pure


def simulated_stage_ms(schedule: Schedule, name: str, steps: Bools) -> float:
    """Return a stage's simulated ms per step over the chosen steps; "a+b" is the sum of two."""
    if name == ALL_REDUCE:
        return float(collective_ms(schedule)[steps].mean())
    parts = [name] if name in schedule.stages else name.split("+")
    columns = [schedule.stages.index(part) for part in parts]
    return float(schedule.sim_stage_ps[steps][:, columns].sum(axis=1).mean()) / PS_PER_MS


def step_rows(schedule: Schedule, runs: list[StepRun]) -> tuple[StepRow, ...]:
    """Put every step's run beside its simulation."""
    moves = schedule.step_moves()
    simulated = schedule.sim_step_ps / PS_PER_MS
    return tuple(
        StepRow(
            step=int(schedule.step[i]),
            rows=int(schedule.rows[i] + schedule.dense_rows[i]),
            units_scheduled=int(moves[i]),
            units_moved=run.units_moved,
            bytes_scheduled=int(moves[i]) * schedule.unit_bytes,
            bytes_moved=run.bytes_moved,
            wrong_units=run.wrong_units,
            sums_checked=run.sums_checked,
            wrong_sums=run.wrong_sums,
            simulated_ms=float(simulated[i]),
            measured_ms=run.step_ms,
            repeats_ms=run.repeats_ms,
        )
        for i, run in enumerate(runs)
    )


def stage_rows(
    schedule: Schedule, runs: list[StepRun], compared: Bools, collectives: bool
) -> tuple[StageRow, ...]:
    """Put every stage's mean beside the simulated one, over the comparable steps."""
    every = np.ones(schedule.steps, dtype=bool)
    timed = dict.fromkeys(name for run in runs for name in run.stages.stage_ms)
    joined = [
        name for name in timed if "+" in name and set(name.split("+")) <= set(schedule.stages)
    ]
    rows = []
    for stage in (*schedule.stages, *joined, *([ALL_REDUCE] if collectives else [])):
        chosen = compared if compared.any() else every
        simulated = simulated_stage_ms(schedule, stage, chosen)
        measured = _mean(
            [run.stages.stage_ms[stage] for run in runs if stage in run.stages.stage_ms]
        )
        clocked = _mean([run.stages.raw_ms[stage] for run in runs if stage in run.stages.raw_ms])
        error = None
        if compared.any() and measured is not None and simulated > 0:
            error = error_pct(simulated, measured)
        rows.append(StageRow(stage, simulated, measured, error, clocked))
    return tuple(rows)


def totals(
    rows: tuple[StepRow, ...], runs: list[StepRun], compared: Bools
) -> tuple[StageRow, StageRow]:
    """Compare over the comparable steps; without any, state both sums and no error."""
    chosen = [row for row, use in zip(rows, compared, strict=True) if use] or list(rows)
    simulated = sum(row.simulated_ms for row in chosen)
    measured = sum(row.measured_ms for row in chosen)
    error = error_pct(simulated, measured) if compared.any() else None
    count = len(chosen)
    clocked = _mean([run.stages.step_ms for run in runs if run.stages.step_ms > 0])
    return (
        StageRow("step", simulated / count, measured / count, error, clocked),
        StageRow("total", simulated, measured, error),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
