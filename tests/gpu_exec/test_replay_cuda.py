"""The GPU executor's and bench's own logic, with a decode step that needs no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpu_exec.kernels.memory
import gpu_exec.step
from gpu_exec.cuda_bench import CudaBench, switches
from gpu_exec.device import query_gpus
from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.kernels.config import StepTimes
from gpu_exec.matrix import ValidationCase
from gpu_exec.measure import measure_case
from gpu_exec.probes import ATTENTION, LINEAR, SCAN, TRANSFER, StepProbe, stage_of
from gpu_exec.replay import replay
from gpu_exec.step_plan import is_dense, last_moves, plan_notes, step_plans
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import GpuUnavailable, RunFailed, UsageError
from oasis_sim.model import load_model
from tests.gpu_exec.fake_step import FakeStep, FakeTorch
from tests.gpu_exec.schedule_cases import Case, make_schedule

CASE = Case(steps=4, layers=2, kv_heads=4, rows=3, head_dim=128, host_blocks=30)
HOST_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch and the decode step."""
    monkeypatch.setattr(gpu_exec.kernels.memory, "require_gpu", lambda: FakeTorch(2))
    monkeypatch.setattr(gpu_exec.step, "DecodeStep", FakeStep)
    monkeypatch.setattr(CudaExecutor, "_check_slots", check_slots)
    monkeypatch.setattr(FakeStep, "opened", [])


def check_slots(executor: CudaExecutor, device: int) -> int:
    """Check the last units with NumPy instead of the device's kernel."""
    step = executor._steps[device]
    step.load(last_moves(executor._plans[device]))
    step.executed = 1
    return step.verify().wrong_units


def schedule_of(case: Case = CASE) -> Schedule:
    """Return a schedule that the kernels could run: 8 pool slots, whole tiles."""
    return make_schedule(replace(case, pool_blocks=8))


@pytest.mark.parametrize(("devices", "tp"), [(1, 1), (2, 2), (2, 1), (1, 2)])
def test_replay_on_devices(devices: int, tp: int) -> None:
    """Every byte is moved and verified; times are compared with those of as many GPUs only."""
    schedule = schedule_of()
    schedule = replace(schedule, meta={**schedule.meta, "tp": tp})
    executor = CudaExecutor(schedule, devices, HOST_BYTES, all_reduce=False)
    report = replay(schedule, executor, "test")
    executor.close()
    assert () == report.problems
    assert schedule.moves * schedule.unit_bytes == report.to_json()["bytes"]["moved"]
    assert devices == len(FakeStep.opened)
    assert all(step.closed for step in FakeStep.opened)
    assert (devices == tp) == (report.step.error_pct is not None)
    assert (devices == tp) == all("was simulated for" not in note for note in report.notes)


def test_steps_are_checked_in_order() -> None:
    """The checked pass starts at the window's first step, whatever ran before for the clock."""
    schedule = schedule_of()
    executor = CudaExecutor(schedule, 1, HOST_BYTES)
    executor.window_ms(3)
    moved = [executor.run_step(index).units_moved for index in range(schedule.steps)]
    assert schedule.step_moves().tolist() == moved


def test_lost_units_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that loses a move fails the replay and the validation case."""
    monkeypatch.setattr(FakeStep, "spoil", 1)
    schedule = schedule_of()
    report = replay(schedule, CudaExecutor(schedule, 1, HOST_BYTES), "test")
    with pytest.raises(RunFailed, match="wrong"):
        report.check()
    with pytest.raises(RunFailed, match="stamp"):
        measure_case(schedule, ValidationCase(8, 4096), 5, HOST_BYTES)


def test_fused_stages_are_compared_together() -> None:
    """Scan and selection in one kernel are one row beside the sum of both simulated stages."""
    schedule = schedule_of()
    names = [*schedule.stages, "prediction", "selection"]
    times = np.concatenate([schedule.sim_stage_ps, schedule.sim_stage_ps[:, :2]], axis=1)
    schedule = replace(schedule, meta={**schedule.meta, "stages": names}, sim_stage_ps=times)
    report = replay(schedule, CudaExecutor(schedule, 1, HOST_BYTES), "test")
    rows = {row.stage: row for row in report.stages}
    assert rows["prediction"].measured_ms is None
    assert pytest.approx(0.2) == rows["prediction+selection"].simulated_ms
    assert 1.0 == rows["prediction+selection"].measured_ms


def test_mixed_steps_are_not_compared() -> None:
    """A window with dense beside sparse rows is executed, noted, and left out of the errors."""
    schedule = schedule_of(replace(CASE, dense_rows=1))
    report = replay(schedule, CudaExecutor(schedule, 1, HOST_BYTES), "test")
    assert report.total.error_pct is None
    assert any("dense rows" in note for note in report.notes)
    assert any("not compared" in note for note in report.notes)


def test_measured_case() -> None:
    """A case's repeats are means over the window; stages and bytes come along."""
    schedule = schedule_of()
    measured = measure_case(schedule, ValidationCase(8, 4096), 5, HOST_BYTES)
    assert 5 == len(measured.step_ms) == len(measured.stage_ms["transfer"])
    assert (2.0,) * 5 == measured.stage_ms["transfer"]
    assert (2.25,) * 5 == measured.raw_ms["transfer"]
    longer = [b - a for a, b in zip(measured.step_ms, measured.clocked_ms, strict=True)]
    assert [pytest.approx(4 * 0.25, abs=0.2)] * 5 == longer
    assert schedule.moves * schedule.unit_bytes == measured.bytes_moved


def test_too_few_devices() -> None:
    """More devices than are here end with exit code 5."""
    with pytest.raises(GpuUnavailable, match="3 devices"):
        CudaExecutor(schedule_of(), 3, HOST_BYTES)


# Plans ------------------------------------------------------------------------------------------


def test_plan_splits_the_model() -> None:
    """Heads and linear layers are split; positions are those of the token being decoded."""
    schedule = schedule_of()
    first, second = step_plans(schedule, 2, HOST_BYTES)
    assert (2, 2) == (first.config.shape.kv_heads, second.config.shape.kv_heads)
    assert {16_000} == {plan.config.shape.draft_vocab for plan in (first, second)}
    assert schedule.moves == len(first.moves.row) + len(second.moves.row)
    expected = schedule.context_tokens[:, : first.config.batch] - 1
    assert np.array_equal(expected, first.moves.context_tokens)
    for plan in (first, second):
        plan.moves.check(plan.config)


def test_dense_plan() -> None:
    """A schedule of dense rows becomes a dense step with nothing to move."""
    schedule = make_schedule(replace(CASE, rows=0, dense_rows=5))
    (plan,) = step_plans(schedule, 1, HOST_BYTES)
    assert is_dense(schedule)
    assert (True, 5, 0) == (plan.config.dense, plan.config.batch, len(plan.moves.row))


def test_last_moves_keep_the_last() -> None:
    """Of several moves into a slot only the last one stays, ordered by layer."""
    (plan,) = step_plans(schedule_of(replace(CASE, steps=12, cap_blocks=4)), 1, HOST_BYTES)
    held: dict[tuple[int, int, int, int], int] = {}
    layers = plan.config.shape.layers
    for group in range(len(plan.moves.offset) - 1):
        for i in range(int(plan.moves.offset[group]), int(plan.moves.offset[group + 1])):
            key = tuple(int(getattr(plan.moves, n)[i]) for n in ("row", "head", "slot"))
            held[group % layers, *key] = int(plan.moves.host_unit[i])
    final = last_moves(plan)
    found = {}
    for layer in range(layers):
        for i in range(int(final.offset[layer]), int(final.offset[layer + 1])):
            key = tuple(int(getattr(final, n)[i]) for n in ("row", "head", "slot"))
            found[layer, *key] = int(final.host_unit[i])
    assert held == found
    assert len(final.row) < len(plan.moves.row)


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("model", "head_dim", 64, "head dimension"),
        ("model", "bytes_per_kv", 1, "2 bytes"),
        ("model", "experts", 8, "experts"),
        ("scheme", "lookahead", "none", "on demand"),
    ],
)
def test_unsupported_schedules(part: str, key: str, value: Any, message: str) -> None:
    """What the kernels cannot run is named, with the way out."""
    schedule = schedule_of()
    meta = {**schedule.meta, part: {**schedule.meta[part], key: value}}
    with pytest.raises(UsageError, match=message):
        step_plans(replace(schedule, meta=meta), 1, HOST_BYTES)


def test_notes_say_what_is_left_out() -> None:
    """Sinks and splits are stated."""
    schedule = schedule_of()
    meta = {**schedule.meta, "scheme": {**schedule.meta["scheme"], "sink_blocks": 1}}
    text = " ".join(plan_notes(replace(schedule, meta=meta), 2))
    assert "sink" in text
    assert "vocabularies are split; what the draft head and the LM head give is not joined" in text
    assert () == plan_notes(schedule, 1)


# Bench ------------------------------------------------------------------------------------------


def open_bench() -> CudaBench:
    """Return a bench on the fake card."""
    line = "0, FAKE, 580.1, 9.0, 1024, 1000, 5, 5, 16, 16, 1, 1, 0x0, 0, Disabled, 00000000:18:00.0"
    return CudaBench(load_model("qwen3-8b"), query_gpus(lambda command: line)[0])


def test_bench_switches_stages() -> None:
    """A probe runs with its stages only, and the same step serves probes of one shape."""
    small = {"context_tokens": 64, "budget_tokens": 32}
    with open_bench() as bench:
        linear = bench.measure_ms(StepProbe((LINEAR,), 1, **small), 1)
        both = bench.measure_ms(StepProbe((LINEAR, ATTENTION), 1, **small), 1)
        assert 1 == len(FakeStep.opened)
        bench.measure_ms(StepProbe((SCAN,), 2, **small), 1)
        assert [True, False] == [step.closed for step in FakeStep.opened]
    assert pytest.approx(4.0, abs=0.2) == linear
    assert pytest.approx(7.0, abs=0.2) == both
    assert all(step.closed for step in FakeStep.opened)


def test_bench_moves_what_the_probe_says() -> None:
    """A transfer probe loads its moves once for all its rounds."""
    with open_bench() as bench:
        probe = StepProbe((TRANSFER,), 1, 64, budget_tokens=64, per_head=2.0)
        for _ in range(3):
            bench.measure_ms(probe, 1)
        (step,) = FakeStep.opened
        assert (1, True) == (step.loads, step.config.stages.transfer)
        assert 2.0 * step.config.pairs * 36 * step.moves.steps == len(step.moves.row)


def test_bench_times_stages_in_common_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages come from steps with clocks, the same ones for all stages of a probe."""
    runs: list[bool] = []
    real = FakeStep.run

    def run(step: FakeStep, steps: int, warmup: int = 3, stages: bool = False) -> StepTimes:
        runs.append(stages)
        return real(step, steps, warmup, stages)

    monkeypatch.setattr(FakeStep, "run", run)
    with open_bench() as bench:
        probe = StepProbe((LINEAR, ATTENTION), 1, 64, budget_tokens=32)
        for _ in range(3):
            assert 1.0 == bench.measure_ms(stage_of(probe, "qkv"), 1)
        for _ in range(3):
            assert 3.0 == bench.measure_ms(stage_of(probe, "attention"), 1)
        assert (1, 3) == (runs.count(False), runs.count(True))
        bench.measure_ms(stage_of(probe, "attention"), 1)
        assert 4 == runs.count(True)
        assert pytest.approx(7.0, abs=0.3) == bench.measure_ms(probe, 1)
        assert 1 == FakeStep.opened[0].loads


def test_switches_are_exact() -> None:
    """Stages that are not named are off, the mirror too."""
    found = switches((SCAN, TRANSFER))
    assert (True, True, False, False) == (found.scan, found.transfer, found.linear, found.mirror)
