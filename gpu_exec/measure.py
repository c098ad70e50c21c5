"""Measure a validation case on the GPU: repeats of the schedule's window, then the stages.

A repeat is one window, or several where the host submits the copies: its speed changes within
seconds, and one window would show one of its speeds only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.matrix import DENSE, ValidationCase
from gpu_exec.validate import Measurement
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed

WINDOWS = {"sm_gather": 1, "copy_engine": 6, "naive": 3}


def measure_case(
    schedule: Schedule, case: ValidationCase, repeats: int, host_bytes: int
) -> Measurement:
    """Return mean ms per step of each repeat, stages, and the bytes that one window moved.

    Raises RunFailed when a unit does not hold its stamp after its move.
    """
    executor = CudaExecutor(schedule, 1, host_bytes)
    try:
        each = 1 if case.scheme == DENSE else WINDOWS[case.transport]
        windows = np.array(executor.window_ms(each * repeats))
        clocked = [executor.stage_times() for _ in range(repeats)]
        runs = [executor.checked_step() for _ in range(schedule.steps)]
    finally:
        executor.close()
    wrong = sum(run.wrong_units for run in runs)
    if wrong:
        raise RunFailed(f"{case.label()}: {wrong} units do not hold their stamp")
    return Measurement(
        step_ms=tuple(windows.reshape(repeats, -1).mean(axis=1).tolist()),
        stage_ms=_by_stage([times.stage_ms for times in clocked]),
        raw_ms=_by_stage([times.raw_ms for times in clocked]),
        clocked_ms=tuple(times.step_ms for times in clocked),
        bytes_moved=sum(run.bytes_moved for run in runs),
    )


def _by_stage(repeats: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """Return the repeats of each stage; one without it counts as 0."""
    names = sorted({name for times in repeats for name in times})
    return {name: tuple(times.get(name, 0.0) for times in repeats) for name in names}
