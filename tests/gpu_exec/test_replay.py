"""Replay on the reference executor: every byte, every stamp, and every fault that it must see."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exec.executor import StageTimes, StepRun
from gpu_exec.executor_cpu import CpuExecutor
from gpu_exec.moves import head_shards, plan_moves
from gpu_exec.replay import replay, write_report
from gpu_exec.replay_table import replay_lines
from gpu_exec.run_dir import load_run_schedule
from gpu_exec.stamps import POISON, address_of, stamp, wrong_units
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import InputError, RunFailed, UsageError
from oasis_sim.report.directory import write_run
from tests.gpu_exec.schedule_cases import Case, make_schedule, save_run


@settings(max_examples=40, deadline=None)
@given(units=st.lists(st.integers(0, 2**62), min_size=1, max_size=8), more=st.integers(0, 40))
def test_stamp_spells_its_address(units: list[int], more: int) -> None:
    """A stamp gives its address back, and any changed element is seen."""
    contents = stamp(np.array(units), 8 + more)
    assert units == address_of(contents).tolist()
    assert not wrong_units(contents, np.array(units)).any()
    contents[0, more] ^= 0x8000
    assert wrong_units(contents, np.array(units))[0]


def test_stamp_values_are_plain_numbers() -> None:
    """Stamps are finite bf16 numbers of magnitude 0.5 to 1 and differ between units."""
    contents = stamp(np.arange(64), 128)
    values = np.abs((contents.astype(np.uint32) << 16).view(np.float32))
    assert 0.5 <= values.min()
    assert values.max() < 1.0
    assert len(np.unique(contents[:, 8:], axis=0)) == 64
    assert not (contents == POISON).any()


def test_unstamped_memory_has_no_address() -> None:
    """Poison spells no address."""
    assert [-1] == address_of(np.full((1, 8), POISON, dtype=np.uint16)).tolist()


def _expected_slots(schedule: Schedule) -> dict[tuple[int, int, int, int], tuple[int, int]]:
    """Follow the schedule in plain Python: (row, layer, head, slot) -> (request, block)."""
    slots = {}
    for step in range(schedule.steps):
        for layer in range(schedule.layers):
            part = schedule.layer_slice(step, layer)
            for i in range(part.start, part.stop):
                row = int(schedule.move_row[i])
                key = (row, layer, int(schedule.move_head[i]), int(schedule.move_slot[i]))
                request = int(schedule.row_request[step, row])
                slots[key] = (request, int(schedule.move_block[i]))
    return slots


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    heads=st.integers(1, 4),
    rows=st.integers(1, 4),
    devices=st.integers(1, 4),
)
def test_moves_end_where_the_schedule_says(seed: int, heads: int, rows: int, devices: int) -> None:
    """After a replay every slot holds the last block that the schedule sent there."""
    schedule = make_schedule(Case(seed=seed, kv_heads=heads, rows=rows))
    executor = CpuExecutor(schedule, devices=min(devices, heads))
    report = replay(schedule, executor, "test")
    assert () == report.problems
    held = {}
    for shard in executor._shards:
        plan = shard.plan
        address = address_of(shard.device)
        for at in np.flatnonzero(address >= 0):
            rest, slot = divmod(int(at), schedule.scheme_int("pool_blocks"))
            rest, head = divmod(rest, plan.heads)
            row, layer = divmod(rest, schedule.layers)
            unit, block = divmod(int(address[at]), schedule.host_blocks)
            unit, unit_head = divmod(unit, plan.heads)
            request, unit_layer = divmod(unit, schedule.layers)
            assert (head, layer) == (unit_head, unit_layer)
            held[row, layer, head + plan.first_head, slot] = (100 + request, block)
    assert _expected_slots(schedule) == held


def test_every_byte_is_counted() -> None:
    """Scheduled and moved units and bytes agree, per step and in total."""
    schedule = make_schedule(Case(steps=5))
    document = replay(schedule, CpuExecutor(schedule, devices=2), "test").to_json()
    total = schedule.moves * schedule.unit_bytes
    assert {"scheduled": total, "moved": total} == document["bytes"]
    assert schedule.step_moves().tolist() == [row["units_moved"] for row in document["steps"]]


def test_cpu_times_are_never_compared() -> None:
    """The reference executor's times carry a label and no error."""
    schedule = make_schedule(Case())
    report = replay(schedule, CpuExecutor(schedule), "test")
    assert {None} == {row.error_pct for row in (*report.stages, report.step, report.total)}
    assert "cpu reference" == report.device.timing
    assert any("not compared" in note for note in report.notes)


def test_aliasing_is_stated() -> None:
    """With less host memory than modelled, units are shared, verified, and the output says so."""
    schedule = make_schedule(Case(host_blocks=4000, head_dim=64))
    report = replay(schedule, CpuExecutor(schedule, budget_bytes=1 << 18), "test")
    assert () == report.problems
    assert report.pools[0].aliased
    assert report.pools[0].scaled
    assert any("aliased" in line for line in replay_lines(report))
    assert any("scaled down" in line for line in replay_lines(report))


def test_budget_too_small() -> None:
    """A schedule that cannot fit says what it needs."""
    with pytest.raises(UsageError, match="bytes"):
        CpuExecutor(make_schedule(Case()), budget_bytes=64)


@pytest.mark.parametrize(("heads", "devices"), [(8, 3), (8, 8), (4, 1), (5, 2)])
def test_head_shards_cover(heads: int, devices: int) -> None:
    """Shards tile the heads, with sizes that differ by one at most."""
    shards = head_shards(heads, devices)
    assert list(range(heads)) == [h for first, count in shards for h in range(first, first + count)]
    assert max(count for _, count in shards) - min(count for _, count in shards) <= 1


@pytest.mark.parametrize("devices", [0, 9])
def test_head_shards_refuse(devices: int) -> None:
    """More devices than heads, or none, is a usage error."""
    with pytest.raises(UsageError):
        head_shards(8, devices)


def test_addresses_beyond_int32() -> None:
    """Slots and host units of a full-size run pass 2**31 without wrapping."""
    schedule = make_schedule(Case(kv_heads=2, host_blocks=1 << 20, pool_blocks=6, rows=2, steps=1))
    meta = {**schedule.meta, "host_blocks": 1 << 24}
    schedule = replace(schedule, meta=meta, row_request=schedule.row_request * 1)
    plan = plan_moves(schedule, None, (0, 2))
    top = plan.placement.modelled_units - 1
    assert 2 * 2 * 2 * (1 << 24) - 1 == top
    aliased = plan_moves(schedule, 1000, (0, 2)).placement
    assert aliased.place(np.array([0, top, 2**61])).max() < 1000


# Faults that a replay must see -----------------------------------------------------------------


class _Faulty(CpuExecutor):
    """Spoil one thing after the copies of step 1."""

    fault = ""

    def _copy(self, shard: Any, moves: Any, slots: Any) -> int:
        before = shard.device.copy()
        copied = super()._copy(shard, moves, slots)
        if self.fault == "lost move":
            shard.device[slots[0]] = before[slots[0]]
        elif self.fault == "torn unit":
            shard.device[slots[-1], -1] ^= 1
        elif self.fault == "wrong block":
            shard.device[slots[0]] = shard.host[(moves.host_unit[0] + 1) % len(shard.host)]
        elif self.fault == "short count":
            copied -= 1
        elif self.fault == "stray write":
            untouched = np.flatnonzero(shard.expected < 0)
            stray = untouched[~np.isin(untouched, slots)][0]
            shard.device[stray] = 0
        return copied


@pytest.mark.parametrize(
    "fault", ["lost move", "torn unit", "wrong block", "short count", "stray write"]
)
def test_fault_is_seen(fault: str) -> None:
    """A lost, torn, misdirected, uncounted or stray copy fails the replay."""
    schedule = make_schedule(Case(pool_blocks=40, host_blocks=60, steps=1))
    executor = _Faulty(schedule)
    executor.fault = fault
    report = replay(schedule, executor, "test")
    assert report.problems
    with pytest.raises(RunFailed, match="does not match"):
        report.check()


def test_stage_error_is_signed() -> None:
    """On a GPU the error is (simulated - measured) / measured, for stages, steps and the total."""

    class Fake(CpuExecutor):
        def run_step(self, index: int) -> StepRun:
            return replace(
                super().run_step(index), step_ms=2.0, stages=StageTimes({"transfer": 0.05})
            )

    schedule = make_schedule(Case())
    executor = Fake(schedule)
    executor.info = replace(executor.info, timing="gpu", kind="cuda")
    report = replay(schedule, executor, "test")
    errors = {row.stage: row.error_pct for row in report.stages}
    assert errors["qkv"] is None
    assert pytest.approx(100.0) == errors["transfer"]
    assert pytest.approx(-50.0) == report.total.error_pct


# Files ------------------------------------------------------------------------------------------


def test_run_directory(tmp_path: Path) -> None:
    """A run directory's schedule is replayed and its report written beside it as plain JSON."""
    save_run(tmp_path)
    schedule = load_run_schedule(tmp_path)
    path = write_report(replay(schedule, CpuExecutor(schedule), str(tmp_path)), tmp_path)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert "oasis-replay" == document["format"]
    assert {"replay.json", "run.log", "schedule.npz", "manifest.json"} == {
        file.name for file in tmp_path.iterdir()
    }


def test_run_directory_refusals(tmp_path: Path) -> None:
    """No directory, no schedule, or a link that leads elsewhere ends in an InputError."""
    with pytest.raises(InputError, match="run directory"):
        load_run_schedule(tmp_path / "missing")
    with pytest.raises(InputError, match=r"no manifest\.json, so the run is not complete; run it"):
        load_run_schedule(tmp_path)
    write_run(tmp_path / "dense", {}, "")
    with pytest.raises(InputError, match="no schedule"):
        load_run_schedule(tmp_path / "dense")
    run = tmp_path / "run"
    run.mkdir()
    make_schedule(Case()).save(tmp_path / "schedule.npz")
    (run / "schedule.npz").symlink_to(tmp_path / "schedule.npz")
    with pytest.raises(InputError, match="out of its directory"):
        load_run_schedule(run)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ('{"files": {"schedule.npz": {"sha256": "00"}}}', "is not the file"),
        ('{"files": {"schedule.npz": []}}', "does not list"),
        ('{"files": 3}', "does not list"),
        ("{", "not valid JSON"),
    ],
)
def test_schedule_of_another_run(manifest: str, message: str, tmp_path: Path) -> None:
    """A schedule that the manifest does not vouch for is refused."""
    make_schedule(Case()).save(tmp_path / "schedule.npz")
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match=message):
        load_run_schedule(tmp_path)


def test_schedule_of_this_run(tmp_path: Path) -> None:
    """The schedule that the manifest lists is taken."""
    save_run(tmp_path)
    assert make_schedule(Case()).moves == load_run_schedule(tmp_path).moves


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "schedule.npz", "manifest.json"])
@pytest.mark.parametrize("damage", ["edited", "missing"])
def test_a_run_with_any_other_file_changed_is_refused(
    name: str, damage: str, tmp_path: Path
) -> None:
    """The comparison is with the whole run: each file that the manifest lists must be there."""
    save_run(tmp_path, **{"summary.json": b"{}", "config.yaml": b"tp: 1\n"})
    load_run_schedule(tmp_path)
    if damage == "edited":
        (tmp_path / name).write_text('{"files": {}}')
        said = "does not list" if name == "manifest.json" else "is not the file that manifest.json"
    else:
        (tmp_path / name).unlink()
        said = "so the run is not complete; run it again"
    with pytest.raises(InputError, match=said) as caught:
        load_run_schedule(tmp_path)
    assert name in str(caught.value)


def test_import_is_light() -> None:
    """Importing the package and the reference executor loads neither torch nor triton."""
    code = (
        "import sys, gpu_exec, gpu_exec.replay, gpu_exec.executor_cpu; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'triton', 'pandas')))"
    )
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
