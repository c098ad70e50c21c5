"""All-reduces on patterns without a GPU: the ring, the numbers, and the reference executor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exec.executor_cpu import SUM_ELEMENTS, CpuExecutor
from gpu_exec.replay import replay
from gpu_exec.replay_table import replay_lines
from gpu_exec.sums import EXACT, Floats, contribution, expected_sum, ring_all_reduce
from oasis_sim.errors import RunFailed
from tests.gpu_exec.schedule_cases import Case, make_schedule

CASE = Case(steps=3, layers=2, kv_heads=4, rows=3, head_dim=128, host_blocks=30, pool_blocks=8)


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(1, 9), elements=st.integers(1, 50), site=st.integers(0, 6))
def test_the_ring_gives_every_rank_the_sum(ranks: int, elements: int, site: int) -> None:
    """Whatever the sizes, all ranks end with the sum of what all had, exactly."""
    parts = [contribution(rank, ranks, elements, 6)[site:][:elements] for rank in range(ranks)]
    buffers = [part.copy() for part in parts]
    ring_all_reduce(buffers)
    whole = np.sum(np.stack(parts), axis=0)
    assert all(np.array_equal(whole, buffer) for buffer in buffers)
    assert np.array_equal(whole, expected_sum(ranks, elements, 6)[site:][:elements])


@pytest.mark.parametrize("ranks", [2, 3, 8, 128, 256])
def test_patterns_are_exact_and_tell_ranks_and_sites_apart(ranks: int) -> None:
    """No sum leaves what bf16 holds exactly; no rank or site can stand in for another."""
    whole = expected_sum(ranks, 4096, 72)
    assert whole.max() <= EXACT
    assert not np.array_equal(contribution(0, ranks, 4096, 0), contribution(1, ranks, 4096, 0))
    same = [(whole[:4096] == whole[site : site + 4096]).mean() for site in range(1, 72)]
    assert max(same) < 0.3


@pytest.mark.parametrize("devices", [2, 4])
def test_reference_checks_every_sum(devices: int) -> None:
    """Two all-reduces per layer, of all devices, each element checked."""
    report = replay(make_schedule(CASE), CpuExecutor(make_schedule(CASE), devices), "test")
    assert () == report.problems
    assert 2 * CASE.layers == report.all_reduces
    each = 2 * CASE.layers * devices * SUM_ELEMENTS
    assert [(each, 0)] * CASE.steps == [(row.sums_checked, row.wrong_sums) for row in report.steps]
    assert any("wrong 0" in line for line in replay_lines(report))
    here = f"simulated for 1 GPU (--tp) and is executed on {devices} devices"
    assert any(here in note for note in report.notes)


def test_without_all_reduces() -> None:
    """A single device has none; several have none when they are left out."""
    for devices, wanted in ((1, True), (2, False)):
        executor = CpuExecutor(make_schedule(CASE), devices, all_reduce=wanted)
        report = replay(make_schedule(CASE), executor, "test")
        assert (0, 0) == (report.all_reduces, sum(row.sums_checked for row in report.steps))
        assert not any("all-reduce" in line for line in replay_lines(report))


@pytest.mark.parametrize("fault", ["no sum", "one rank missing", "torn", "swapped chunks"])
def test_a_wrong_sum_fails_the_reference(fault: str) -> None:
    """A sum that is missing, partial, torn or misplaced ends the replay."""

    class Faulty(CpuExecutor):
        def _sum(self, buffers: list[Floats]) -> None:
            if fault == "one rank missing":
                buffers[0][:] = 0
            if fault != "no sum":
                super()._sum(buffers)
            if fault == "torn":
                buffers[1][-1] += 1
            elif fault == "swapped chunks":
                buffers[1][:] = np.roll(buffers[1], SUM_ELEMENTS // 2)

    report = replay(make_schedule(CASE), Faulty(make_schedule(CASE), 2), "test")
    with pytest.raises(RunFailed, match="wrong elements of all-reduces"):
        report.check()
