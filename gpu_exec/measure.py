"""Measure a validation case on the GPU: repeats of the schedule's window, then the stages."""

from __future__ import annotations

from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.matrix import ValidationCase
from gpu_exec.validate import Measurement
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed


def measure_case(
    schedule: Schedule, case: ValidationCase, repeats: int, host_bytes: int
) -> Measurement:
    """Return mean ms per step of each repeat, stages, and the bytes that one window moved.

    Raises RunFailed when a unit does not hold its stamp after its move.
    """
    executor = CudaExecutor(schedule, 1, host_bytes)
    try:
        windows = executor.window_ms(repeats)
        stages: dict[str, list[float]] = {}
        for _ in range(repeats):
            for name, value in executor.stage_ms().items():
                stages.setdefault(name, []).append(value)
        runs = [executor.checked_step(0.0, {}) for _ in range(schedule.steps)]
    finally:
        executor.close()
    wrong = sum(run.wrong_units for run in runs)
    if wrong:
        raise RunFailed(f"{case.label()}: {wrong} units do not hold their stamp")
    return Measurement(
        step_ms=tuple(sum(row) / len(row) for row in windows),
        stage_ms={name: tuple(values) for name, values in stages.items()},
        bytes_moved=sum(run.bytes_moved for run in runs),
    )
