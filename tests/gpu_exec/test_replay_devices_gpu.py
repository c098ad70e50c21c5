"""A schedule replayed on two real GPUs: heads split, every unit in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.replay import replay
from tests.gpu_exec.gpu_cases import missing_gpu, needs_gpu
from tests.gpu_exec.schedule_cases import Case, make_schedule

HOST_BYTES = 64 << 20
CASE = Case(steps=4, layers=3, kv_heads=4, rows=5, head_dim=128, host_blocks=40, pool_blocks=8)


def gpus() -> int:
    """Return how many GPUs are here."""
    if missing_gpu() is not None:
        return 0
    import torch

    return torch.cuda.device_count()


pytestmark = [*needs_gpu, pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")]


@pytest.mark.parametrize("case", [CASE, replace(CASE, seed=1, block_tokens=32, cap_blocks=4)])
def test_two_devices_hold_every_unit(case: Case) -> None:
    """Each device moves the units of its own heads, and all of them arrive."""
    schedule = make_schedule(case)
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    try:
        report = replay(schedule, executor, "test")
        memories = [step.memory.pool.device.index for step in executor._steps]
    finally:
        executor.close()
    assert () == report.problems
    assert [0, 1] == memories
    assert schedule.moves * schedule.unit_bytes == report.to_json()["bytes"]["moved"]
    assert all(row.measured_ms > 0 for row in report.steps)


def test_devices_move_what_one_moves() -> None:
    """Split or not, a step moves the same units."""
    schedule = make_schedule(CASE)
    moved = []
    for devices in (1, 2):
        executor = CudaExecutor(schedule, devices, HOST_BYTES)
        try:
            report = replay(schedule, executor, "test")
        finally:
            executor.close()
        moved.append([row.units_moved for row in report.steps])
    assert moved[0] == moved[1] == schedule.step_moves().tolist()
