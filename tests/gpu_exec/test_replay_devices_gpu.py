"""A schedule replayed on two real GPUs: heads split, every unit in its place, every sum right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.replay import replay
from oasis_sim.errors import RunFailed
from tests.gpu_exec.gpu_cases import missing_gpu, needs_gpu
from tests.gpu_exec.schedule_cases import Case, make_schedule

HOST_BYTES = 64 << 20
CASE = Case(steps=4, layers=3, kv_heads=4, rows=5, head_dim=128, host_blocks=40, pool_blocks=8)
DELAY_NS = 2_000_000


def gpus() -> int:
    """Return how many GPUs are here."""
    if missing_gpu() is not None:
        return 0
    import torch

    return torch.cuda.device_count()


pytestmark = [*needs_gpu, pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")]


@contextmanager
def opened(case: Case = CASE, devices: int = 2, all_reduce: bool = True) -> Iterator[CudaExecutor]:
    """Open an executor for a case's schedule."""
    executor = CudaExecutor(make_schedule(case), devices, HOST_BYTES, all_reduce)
    try:
        yield executor
    finally:
        executor.close()


@pytest.mark.parametrize("case", [CASE, replace(CASE, seed=1, block_tokens=32, cap_blocks=4)])
def test_two_devices_hold_every_unit_and_sum(case: Case) -> None:
    """Each device moves the units of its own heads, and all of them arrive; so do the sums."""
    schedule = make_schedule(case)
    with opened(case) as executor:
        report = replay(schedule, executor, "test")
        memories = [step.memory.pool.device.index for step in executor._steps]
        elements = sum(step.memory.x.numel() for step in executor._steps)
    assert () == report.problems
    assert [0, 1] == memories
    assert schedule.moves * schedule.unit_bytes == report.to_json()["bytes"]["moved"]
    assert all(row.measured_ms > 0 for row in report.steps)
    checked = 2 * case.layers * elements
    assert [(checked, 0)] * case.steps == [(r.sums_checked, r.wrong_sums) for r in report.steps]


def test_devices_move_what_one_moves() -> None:
    """Split or not, joined or not, a step moves the same units."""
    schedule = make_schedule(CASE)
    moved = []
    for devices, all_reduce in ((1, True), (2, True), (2, False)):
        with opened(devices=devices, all_reduce=all_reduce) as executor:
            report = replay(schedule, executor, "test")
        moved.append([row.units_moved for row in report.steps])
    assert moved[0] == moved[1] == moved[2] == schedule.step_moves().tolist()


def test_a_late_device_changes_nothing() -> None:
    """However late one device is, both hold what they hold without a delay, bit by bit."""
    found = []
    with opened() as executor:
        for late in ({}, {0: DELAY_NS}, {1: DELAY_NS}):
            for device, step in enumerate(executor._steps):
                step.hold_back({"attention": late.get(device, 0), "mirror": late.get(device, 0)})
            executor.reconfigure()
            states = executor._each(lambda device: executor._steps[device].hidden_state())
            assert states[0] == states[1]
            found.append(states[0])
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 16  # numbers, not one value everywhere


def test_a_wrong_contribution_is_found() -> None:
    """One number that differs on one device is seen on both, once per all-reduce it is in."""
    with opened() as executor:
        executor._steps[1]._sums._mine[40] += 1
        wrong = executor.checked_step().wrong_sums
        assert 2 * 2 * CASE.layers == wrong
        executor._steps[1].memory.x[0, 0] += 1
        with pytest.raises(RunFailed, match="same numbers"):
            executor._compare_devices()
