"""Replay: run a schedule's steps on an executor, count every byte, compare with the simulation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_exec.executor import DeviceInfo, Executor, PoolInfo, StepRun
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed
from oasis_sim.fileio import check_writable, inside, write_atomic
from oasis_sim.units import PS_PER_MS

FORMAT = "oasis-replay"
VERSION = 1
REPLAY_NAME = "replay.json"


@dataclass(frozen=True)
class StepRow:
    """Compare one step: scheduled against executed, simulated against measured."""

    step: int
    rows: int
    units_scheduled: int
    units_moved: int
    bytes_scheduled: int
    bytes_moved: int
    wrong_units: int
    simulated_ms: float
    measured_ms: float


@dataclass(frozen=True)
class StageRow:
    """Compare one stage, in ms per step; None where it was not timed or may not be compared."""

    stage: str
    simulated_ms: float
    measured_ms: float | None
    error_pct: float | None


@dataclass(frozen=True)
class ReplayReport:
    """Hold the result of a replay; `problems` is empty when every byte arrived where it should.

    `step` compares whole steps (mean ms per step) and `total` the whole window (ms); their
    `error_pct` is None unless the times were measured on a GPU.
    """

    source: str
    device: DeviceInfo
    pools: tuple[PoolInfo, ...]
    steps: tuple[StepRow, ...]
    stages: tuple[StageRow, ...]
    step: StageRow
    total: StageRow
    pool_wrong_slots: int
    notes: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `replay.json` holds."""
        document = asdict(self)
        document["pools"] = [
            {**asdict(pool), "aliased": pool.aliased, "scaled": pool.scaled} for pool in self.pools
        ]
        document["bytes"] = {
            "scheduled": sum(row.bytes_scheduled for row in self.steps),
            "moved": sum(row.bytes_moved for row in self.steps),
        }
        return {"format": FORMAT, "version": VERSION, **document}

    def check(self) -> None:
        """Raise RunFailed when a byte is missing or stands in the wrong place."""
        if self.problems:
            raise RunFailed(f"replay does not match the schedule: {'; '.join(self.problems)}")


def replay(
    schedule: Schedule,
    executor: Executor,
    source: str,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Run every step of the window in order and compare; the executor stays open."""
    runs: list[StepRun] = []
    for index in range(schedule.steps):
        runs.append(executor.run_step(index))
        if progress is not None:
            progress(index + 1, schedule.steps)
    pool_wrong, pool_text = executor.check_pool()
    rows = _step_rows(schedule, runs)
    compared = decode_only(schedule) & (executor.info.timing == "gpu")
    step, total = _totals(rows, compared)
    return ReplayReport(
        source=source,
        device=executor.info,
        pools=executor.pools,
        steps=rows,
        stages=_stage_rows(schedule, runs, compared),
        step=step,
        total=total,
        pool_wrong_slots=pool_wrong,
        notes=_notes(schedule, executor, compared),
        problems=_problems(rows, runs, pool_wrong, pool_text),
    )


def check_report_place(run_dir: str | Path) -> None:
    """Raise InputError when `replay.json` cannot be written into a run directory."""
    check_writable(inside(run_dir, REPLAY_NAME))


def write_report(report: ReplayReport, run_dir: str | Path) -> Path:
    """Write `replay.json` into the run directory, atomically, and return its path."""
    path = inside(run_dir, REPLAY_NAME)
    write_atomic(path, render_json(report.to_json()))
    return path


def render_json(document: Mapping[str, Any]) -> str:
    """Return a JSON document as indented text with a final newline; NaN is refused."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def error_pct(simulated: float, measured: float) -> float | None:
    """Return the simulation's error in percent of the measurement, None without one."""
    return None if measured <= 0 else 100.0 * (simulated - measured) / measured


def collective_ms(schedule: Schedule) -> npt.NDArray[np.float64]:
    """Return the simulated ms of each step's collectives, float64[S]; no executor runs them."""
    found = schedule.meta.get("collective_ps", [0] * schedule.steps)
    return np.asarray(found, dtype=np.float64) / PS_PER_MS


def _step_rows(schedule: Schedule, runs: list[StepRun]) -> tuple[StepRow, ...]:
    moves = schedule.step_moves()
    simulated = schedule.sim_step_ps / PS_PER_MS - collective_ms(schedule)
    return tuple(
        StepRow(
            step=int(schedule.step[i]),
            rows=int(schedule.rows[i] + schedule.dense_rows[i]),
            units_scheduled=int(moves[i]),
            units_moved=run.units_moved,
            bytes_scheduled=int(moves[i]) * schedule.unit_bytes,
            bytes_moved=run.bytes_moved,
            wrong_units=run.wrong_units,
            simulated_ms=float(simulated[i]),
            measured_ms=run.step_ms,
        )
        for i, run in enumerate(runs)
    )


def simulated_stage_ms(schedule: Schedule, name: str, steps: npt.NDArray[np.bool_]) -> float:
    """Return a stage's simulated ms per step over the chosen steps; "a+b" is the sum of two.

    Collectives, which the simulator counts with output and FFN, are left out.
    """
    parts = [name] if name in schedule.stages else name.split("+")
    columns = [schedule.stages.index(part) for part in parts]
    total = float(schedule.sim_stage_ps[steps][:, columns].sum(axis=1).mean()) / PS_PER_MS
    return total - float(collective_ms(schedule)[steps].mean()) * ("output_ffn" in parts)


def decode_only(schedule: Schedule) -> npt.NDArray[np.bool_]:
    """Return which steps hold nothing but rows of one kind: no prefill, not dense and sparse."""
    pure: npt.NDArray[np.bool_] = (schedule.rows == 0) | (schedule.dense_rows == 0)
    if "prefill" in schedule.stages:
        pure = pure & (schedule.sim_stage_ps[:, schedule.stages.index("prefill")] == 0)
    return pure


def _stage_rows(
    schedule: Schedule, runs: list[StepRun], compared: npt.NDArray[np.bool_]
) -> tuple[StageRow, ...]:
    every = np.ones(schedule.steps, dtype=bool)
    timed = dict.fromkeys(name for run in runs for name in run.stage_ms)
    joined = [
        name for name in timed if "+" in name and set(name.split("+")) <= set(schedule.stages)
    ]
    rows = []
    for stage in (*schedule.stages, *joined):
        chosen = compared if compared.any() else every
        simulated = simulated_stage_ms(schedule, stage, chosen)
        times = [run.stage_ms[stage] for run in runs if stage in run.stage_ms]
        measured = sum(times) / len(times) if times else None
        error = None
        if compared.any() and measured is not None:
            error = error_pct(simulated, measured)
        rows.append(StageRow(stage, simulated, measured, error))
    return tuple(rows)


def _totals(
    rows: tuple[StepRow, ...], compared: npt.NDArray[np.bool_]
) -> tuple[StageRow, StageRow]:
    """Compare over the comparable steps; without any, state both sums and no error."""
    chosen = [row for row, use in zip(rows, compared, strict=True) if use] or list(rows)
    simulated = sum(row.simulated_ms for row in chosen)
    measured = sum(row.measured_ms for row in chosen)
    error = error_pct(simulated, measured) if compared.any() else None
    count = len(chosen)
    return (
        StageRow("step", simulated / count, measured / count, error),
        StageRow("total", simulated, measured, error),
    )


def _notes(
    schedule: Schedule, executor: Executor, compared: npt.NDArray[np.bool_]
) -> tuple[str, ...]:
    notes = list(executor.notes)
    modelled = sum(pool.modelled_host_units for pool in executor.pools)
    units = sum(pool.host_units for pool in executor.pools)
    full_gib = units * schedule.unit_bytes / 2**30
    if units < modelled:
        notes.append(
            f"host units are aliased: {modelled:,} modelled units share {units:,} "
            f"({full_gib:.2f} GiB at full size), chosen by a hash of the address"
        )
    if (left_out := float(collective_ms(schedule).mean())) > 0:
        notes.append(
            f"collectives between GPUs are not run: {left_out:.3f} ms of each simulated step are "
            "left out here"
        )
    sizes = sorted({pool.executed_unit_bytes for pool in executor.pools if pool.scaled})
    notes += [
        f"units are scaled down: {size:,} of {schedule.unit_bytes:,} bytes are stored and checked; "
        "bytes scheduled and moved are units times the full size, not bytes stored"
        for size in sizes
    ]
    if executor.info.timing != "gpu":
        notes.append(
            "times are those of the CPU reference executor; they say nothing about a GPU and are "
            "not compared"
        )
    elif not compared.all():
        notes.append(
            f"{int((~compared).sum())} of {schedule.steps} steps hold prefill or dense and sparse "
            "rows together; they are executed but not compared"
        )
    return tuple(notes)


def _problems(
    rows: tuple[StepRow, ...], runs: list[StepRun], pool_wrong: int, pool_text: str | None
) -> tuple[str, ...]:
    problems = []
    for row, run in zip(rows, runs, strict=True):
        if row.bytes_moved != row.bytes_scheduled or row.units_moved != row.units_scheduled:
            problems.append(
                f"step {row.step} moved {row.bytes_moved} of {row.bytes_scheduled} bytes"
            )
        if row.wrong_units:
            problems.append(f"step {row.step}: {row.wrong_units} wrong units ({run.first_wrong})")
    if pool_wrong:
        problems.append(f"{pool_wrong} slots of the pool are wrong at the end ({pool_text})")
    return tuple(problems)
