"""Replay: run a schedule's steps on an executor, count every byte, compare with the simulation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_exec.compare import (
    StageRow,
    StepRow,
    collective_ms,
    decode_only,
    stage_rows,
    step_rows,
    totals,
)
from gpu_exec.executor import DeviceInfo, Executor, PoolInfo, StepRun
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed
from oasis_sim.fileio import check_writable, inside, write_atomic
from oasis_sim.text import counted

FORMAT = "oasis-replay"
VERSION = 1
REPLAY_NAME = "replay.json"


@dataclass(frozen=True)
class ReplayReport:
    """Hold the result of a replay; `problems` is empty when every byte arrived where it should.

    `step` compares whole steps (mean ms per step) and `total` the whole window (ms); their
    `error_pct` is None unless the times were measured on a GPU. `all_reduces` were run per step.
    """

    source: str
    device: DeviceInfo
    pools: tuple[PoolInfo, ...]
    steps: tuple[StepRow, ...]
    stages: tuple[StageRow, ...]
    all_reduces: int
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
    notes: tuple[str, ...] = (),
) -> ReplayReport:
    """Run every step of the window in order and compare; the executor stays open.

    `notes` say what else a reader of the report must know.
    """
    runs: list[StepRun] = []
    for index in range(schedule.steps):
        runs.append(executor.run_step(index))
        if progress is not None:
            progress(index + 1, schedule.steps)
    pool_wrong, pool_text = executor.check_pool()
    joined = executor.all_reduces > 0
    rows = step_rows(schedule, runs)
    like = executor.info.timing == "gpu" and _gpus(schedule) == executor.info.devices
    compared = decode_only(schedule) & like
    step, total = totals(rows, runs, compared)
    return ReplayReport(
        source=source,
        device=executor.info,
        pools=executor.pools,
        steps=rows,
        stages=stage_rows(schedule, runs, compared, joined),
        all_reduces=executor.all_reduces,
        step=step,
        total=total,
        pool_wrong_slots=pool_wrong,
        notes=(*notes, *_notes(schedule, executor)),
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


def _gpus(schedule: Schedule) -> int:
    """Return how many GPUs the run was simulated for."""
    return int(schedule.meta.get("tp", 1))


def _notes(schedule: Schedule, executor: Executor) -> tuple[str, ...]:
    notes = list(executor.notes)
    modelled = sum(pool.modelled_host_units for pool in executor.pools)
    units = sum(pool.host_units for pool in executor.pools)
    full_gib = units * schedule.unit_bytes / 2**30
    if units < modelled:
        notes.append(
            f"host units are aliased: {modelled:,} modelled units share {units:,} "
            f"({full_gib:.2f} GiB at full size), chosen by a hash of the address"
        )
    priced = float(collective_ms(schedule).mean())
    if executor.all_reduces:
        notes.append(
            f"{executor.all_reduces} all-reduces per step join the devices; every element of their "
            "sums is checked, on known patterns"
        )
    elif priced > 0:
        notes.append(
            f"all-reduces between GPUs are not run; {priced:.3f} ms of each simulated step are "
            "theirs"
        )
    if _gpus(schedule) != executor.info.devices:
        gpus, here = counted(_gpus(schedule), "GPU"), counted(executor.info.devices, "device")
        notes.append(
            f"the run was simulated for {gpus} (--tp) and is executed on {here}: times are not "
            "compared; take as many of both"
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
    elif not (pure := decode_only(schedule)).all():
        notes.append(
            f"{int((~pure).sum())} of {schedule.steps} steps hold prefill or dense and sparse "
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
        if row.wrong_sums:
            problems.append(f"step {row.step}: {row.wrong_sums} wrong elements of all-reduces")
    if pool_wrong:
        problems.append(f"{pool_wrong} slots of the pool are wrong at the end ({pool_text})")
    return tuple(problems)
