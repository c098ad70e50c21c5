"""All-reduces of a split step without a GPU: order, failures, and what a replay says."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpu_exec.executor_cuda
import gpu_exec.kernels.marks
import gpu_exec.kernels.memory
import gpu_exec.kernels.program
import gpu_exec.step
from gpu_exec.compare import ALL_REDUCE
from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.kernels.config import StageSwitches
from gpu_exec.kernels.marks import Marks
from gpu_exec.kernels.program import StepProgram
from gpu_exec.kernels.rank_sum import StepSums
from gpu_exec.left_out import without_all_reduces
from gpu_exec.nccl import SETTINGS
from gpu_exec.replay import replay
from oasis_sim.cli.main import main
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed
from oasis_sim.report.config import read_config
from oasis_sim.units import PS_PER_MS
from tests.gpu_exec.fake_group import FakeGroup
from tests.gpu_exec.fake_step import FakeStep, FakeTorch
from tests.gpu_exec.schedule_cases import Case, make_schedule

CASE = Case(steps=3, layers=2, kv_heads=4, rows=3, head_dim=128, host_blocks=30, pool_blocks=8)
HOST_BYTES = 1 << 20
ROOT = Path(__file__).parents[2]


def schedule_of(collective_ps: int = 0) -> Schedule:
    """Return a schedule of two GPUs whose output and FFN hold collectives."""
    plain = make_schedule(CASE)
    times = np.concatenate([plain.sim_stage_ps, 4 * plain.sim_stage_ps[:, :1]], axis=1)
    meta = {**plain.meta, "stages": [*plain.stages, "output_ffn"], "tp": 2}
    meta["collective_ps"] = [collective_ps] * plain.steps
    return replace(plain, meta=meta, sim_stage_ps=times)


def run_layer(monkeypatch: pytest.MonkeyPatch, rank: int | None, **switches: bool) -> list[Any]:
    """Enqueue the output projection and FFN of layer 3; return what was called, in order."""
    calls: list[Any] = []
    program = gpu_exec.kernels.program
    monkeypatch.setattr(program, "launch", lambda name, *rest: calls.append((name, rest[-1])))
    monkeypatch.setattr(program, "pointer", lambda tensor: tensor)
    monkeypatch.setattr(gpu_exec.kernels.marks, "named", nullcontext)
    memory = SimpleNamespace(
        **{name: np.zeros((2, 4)) for name in ("x", "normed", "gate_up", "gated", "attended")}
    )
    weights = SimpleNamespace(
        **{name: [name] * 4 for name in ("o", "gate_up", "down")}, norm=[None] * 9
    )
    sums = None
    if rank is not None:
        sums = SimpleNamespace(
            rank=rank,
            plain=lambda x, site: calls.append(("sum", site, x is memory.x)),
            checked=lambda x, site: calls.append(("checked sum", site, x is memory.x)),
        )
    config = SimpleNamespace(stages=StageSwitches(**switches), early_launch=True)
    step = object.__new__(StepProgram)
    step.parts = SimpleNamespace(
        weights=weights,
        gemm=lambda x, weight, out, residual: calls.append((weight, residual is not None)),
    )
    step.config, step.memory, step.marks, step.stages = config, memory, Marks(), config.stages
    step.sums = StepSums(sums if config.stages.all_reduce else None, memory.x, checked=False)
    step._ffn(3)
    return calls


def test_a_layer_sums_after_each_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output projection, sum, norm, FFN, sum; nothing that reads a sum may start early."""
    assert [
        ("o", True),
        ("sum", 6, True),
        ("oasis_rms_norm", 0),
        ("gate_up", False),
        ("oasis_silu_mul", 1),
        ("down", True),
        ("sum", 7, True),
    ] == run_layer(monkeypatch, rank=0)


def test_the_residual_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of devices that sum, only the first adds the residual; alone, or not summing, each does."""
    adds = {
        name: [call[1] for call in run_layer(monkeypatch, rank, **switches) if call[0] in weights]
        for weights in [("o", "down")]
        for name, rank, switches in [
            ("first", 0, {}),
            ("second", 1, {}),
            ("alone", None, {}),
            ("ablation", 1, {"all_reduce": False}),
        ]
    }
    yes, no = [True, True], [False, False]
    assert {"first": yes, "second": no, "alone": yes, "ablation": yes} == adds


# The GPU executor -------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace CUDA, NCCL and the decode step."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from gpu_exec.kernels import rank_sum

    real = rank_sum.RankSum
    monkeypatch.setattr(gpu_exec.kernels.memory, "require_gpu", lambda: FakeTorch(2))
    monkeypatch.setattr(gpu_exec.step, "DecodeStep", FakeStep)
    monkeypatch.setattr(gpu_exec.executor_cuda, "NcclGroup", FakeGroup)
    monkeypatch.setattr(rank_sum, "RankSum", lambda *rest: real(*rest, device="cpu"))
    monkeypatch.setattr(CudaExecutor, "_check_slots", lambda executor, device: 0)
    monkeypatch.setattr(FakeStep, "opened", [])
    monkeypatch.setattr(FakeStep, "log", [])
    monkeypatch.setattr(FakeGroup, "opened", [])


@pytest.mark.usefixtures("fake")
def test_replay_with_all_reduces() -> None:
    """Every sum is checked; the simulated step keeps its collectives; stages are compared."""
    schedule = schedule_of(collective_ps=300_000_000)
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    report = replay(schedule, executor, "test")
    executor.close()
    assert () == report.problems
    config = FakeStep.opened[0].config
    each = 2 * CASE.layers * 2 * config.rows * config.shape.hidden
    assert [each] * CASE.steps == [row.sums_checked for row in report.steps]
    assert pytest.approx(1.0) == report.step.simulated_ms
    rows = {row.stage: row for row in report.stages}
    assert pytest.approx(0.4) == rows["output_ffn"].simulated_ms
    assert (pytest.approx(0.3), 0.5) == (
        rows[ALL_REDUCE].simulated_ms,
        rows[ALL_REDUCE].measured_ms,
    )
    assert 2.5 == rows["output_ffn"].measured_ms
    assert [5] * CASE.steps == [len(row.repeats_ms) for row in report.steps]
    assert "NCCL 0.fake" in report.device.driver
    assert not any("was simulated for" in note for note in report.notes)
    assert "closed" == FakeGroup.opened[0].state


@pytest.mark.usefixtures("fake")
def test_the_ablation_runs_no_all_reduces() -> None:
    """None is opened, run or compared; the output says what the simulated step has of them."""
    schedule = schedule_of(collective_ps=300_000_000)
    executor = CudaExecutor(schedule, 2, HOST_BYTES, all_reduce=False)
    report = replay(schedule, executor, "test", notes=("first",))
    assert [] == FakeGroup.opened
    assert pytest.approx(1.0) == report.step.simulated_ms
    assert ALL_REDUCE not in {row.stage for row in report.stages}
    assert "first" == report.notes[0]
    assert any("0.300 ms of each simulated step are theirs" in note for note in report.notes)
    plain = schedule_of()
    whole = replay(plain, CudaExecutor(plain, 2, HOST_BYTES, all_reduce=False), "test")
    assert not any("all-reduces" in note for note in whole.notes)


@pytest.mark.usefixtures("fake")
def test_switched_off_the_devices_need_not_agree() -> None:
    """The switch of the stages turns all-reduces off and on again without another executor."""
    executor = CudaExecutor(schedule_of(), 2, HOST_BYTES)
    group, tried, step = FakeGroup.opened[0], 1, 2 * CASE.layers
    before = group.sums
    executor.reconfigure(stages=StageSwitches(all_reduce=False))
    executor.window_ms(2)
    assert before + tried == group.sums
    executor.reconfigure(stages=StageSwitches())
    executor.window_ms(2)
    windows = 2 + 3  # both forms once, then warm-up and two for the clock
    assert before + 2 * tried + windows * CASE.steps * step == group.sums


@pytest.mark.usefixtures("fake")
def test_every_graph_is_captured_before_any_runs() -> None:
    """Sums are tried, then each device captures its three graphs in turn, then all run."""
    CudaExecutor(schedule_of(), 2, HOST_BYTES)
    captures = [entry for entry in FakeStep.log if entry[1] == "capture"]
    assert captures == FakeStep.log[: len(captures)]
    assert [0, 0, 0, 1, 1, 1] == [rank for rank, _ in captures]
    assert {(0, "step"), (1, "step")} == set(FakeStep.log[len(captures) :])


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("fault", ["deaf", "late"])
def test_wrong_sums_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that keeps its own numbers or gets older ones: before the run, or in its steps."""
    schedule = schedule_of()
    with pytest.raises(RunFailed, match=r"wrong elements|same numbers"):
        monkeypatch.setattr(FakeGroup, "fault", fault)
        replay(schedule, CudaExecutor(schedule, 2, HOST_BYTES), "test").check()
    monkeypatch.setattr(FakeGroup, "fault", "")
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    times = executor.window_ms(1)
    monkeypatch.setattr(FakeGroup, "fault", fault)
    assert executor.checked_step(times[0][0]).wrong_sums > 0
    with pytest.raises(RunFailed, match="same numbers"):
        executor.window_ms(1)
        executor.window_ms(1)


@pytest.mark.usefixtures("fake")
def test_a_sum_that_does_not_run_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked steps count the sums they did: one all-reduce fewer is as many wrong elements."""
    schedule = schedule_of()
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    config = FakeStep.opened[0].config
    shape = replace(config.shape, layers=1)
    for step in FakeStep.opened:
        monkeypatch.setattr(step, "checking", True)
    done = executor.checked_step()
    assert 0 == done.wrong_sums
    monkeypatch.setattr(executor, "all_reduces", 2 * CASE.layers + 1)
    missing = executor.checked_step().wrong_sums
    assert 2 * config.rows * shape.hidden == missing


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("broken", [0, 1])
def test_a_device_that_fails_lets_the_other_go(
    broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other device waits in a sum for ever: the group is aborted, the first fault is told."""
    schedule = schedule_of()
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    monkeypatch.setattr(FakeStep, "fails_at", {broken: FakeStep.opened[broken].executed + 1})
    with pytest.raises(RunFailed, match="fell over"):
        executor.window_ms(1)
    executor.close()
    assert "aborted" == FakeGroup.opened[0].state
    assert all(step.closed for step in FakeStep.opened)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("failed", [False, True])
def test_the_first_fault_is_told(failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that cannot let go after a fault does not hide it; without one it is the fault."""

    def close(step: FakeStep) -> None:
        raise RunFailed("nothing left to close")

    executor = CudaExecutor(schedule_of(), 2, HOST_BYTES)
    monkeypatch.setattr(FakeStep, "close", close)
    if failed:
        monkeypatch.setattr(FakeStep, "fails_at", {1: FakeStep.opened[1].executed + 1})
        with pytest.raises(RunFailed, match="fell over"):
            executor.window_ms(1)
        executor.close()
    else:
        with pytest.raises(RunFailed, match="nothing left"):
            executor.close()
    assert "aborted" == FakeGroup.opened[0].state


# Measured ---------------------------------------------------------------------------------------

RUN = ["--profile", "h200", "--engine", "gpu_exec", "--tp", "2", "--requests", "128", "--quiet"]
RUN += ["--concurrency", "128", "--output-tokens", "1024", "--host-memory", "2000GB"]


def measured_ms(transfer: bool, all_reduce: bool) -> float:
    """Return the step time of two H200 with the usual gather and the protocol that is set."""
    rows = json.loads((ROOT / "validation" / "ablations-two-h200.json").read_text())["rows"]
    found = [
        row["step_ms"]
        for row in rows
        if (row["transfer"], row["all_reduce"]) == (transfer, all_reduce)
        if row["protocol"] == SETTINGS["NCCL_PROTO"]
    ]
    return float(found[0])


@pytest.mark.parametrize(("ratio", "transfer"), [("0.05", True), ("0", False)])
def test_two_gpus_are_simulated_within_the_bound(
    ratio: str, transfer: bool, tmp_path: Path
) -> None:
    """The step of the documented run is within 8 % of the measured one, with all-reduces or not."""
    assert 0 == main(["run", *RUN, "--fetch-ratio", ratio, "--out", str(tmp_path / "run")])
    whole = Schedule.load(tmp_path / "run" / "schedule.npz")
    alone = without_all_reduces(read_config(tmp_path / "run" / "config.yaml").spec.scenario())
    for schedule, all_reduce in ((whole, True), (alone, False)):
        simulated = float(schedule.sim_step_ps.mean()) / PS_PER_MS
        assert simulated == pytest.approx(measured_ms(transfer, all_reduce), rel=0.08)
