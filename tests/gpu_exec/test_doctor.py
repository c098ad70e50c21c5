"""Doctor and device state: a fake nvidia-smi, odd output, hosts without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exec.device import (
    Runner,
    compute_processes,
    missing_parts,
    query_gpus,
    refusal,
    require_gpu,
    run_query,
)
from gpu_exec.doctor import Check, Machine, diagnose, to_json
from oasis_sim.errors import GpuUnavailable

H200 = (
    "0, NVIDIA H200, 580.159.04, 9.0, 143771, 143120, 5, 5, 16, 16, 1980, 1980, "
    "0, Disabled, 00000000:18:00.0, 0x0000000000000000"
)


def smi(state: str, apps: str = "") -> Runner:
    """Return a runner that answers the two queries with the given text."""

    def run(command: Sequence[str]) -> str | None:
        return apps if "--query-compute-apps=pid" in command else state

    return run


def none(command: Sequence[str]) -> str | None:
    """Answer like a machine without nvidia-smi."""
    return None


def find(checks: tuple[Check, ...], name: str) -> Check:
    """Return the check of that name."""
    return next(check for check in checks if check.name == name)


def edit(**cells: str) -> str:
    """Return the H200 line with some cells changed by position (c0, c1, ...)."""
    row = H200.split(", ")
    for key, value in cells.items():
        row[int(key[1:])] = value
    return ", ".join(row)


def test_state_is_parsed() -> None:
    """A healthy card is read with its memory in bytes and nothing to refuse."""
    (gpu,) = query_gpus(smi(H200))
    assert ("NVIDIA H200", (9, 0), 143771 << 20) == (
        gpu.name,
        gpu.compute_capability,
        gpu.memory_bytes,
    )
    assert () == refusal([gpu], ())
    assert () == missing_parts([gpu], lambda name: True)


def test_shared_or_throttled_card_is_refused() -> None:
    """Other processes, throttling and MIG each give a reason; idle clocks do not."""
    (hot,) = query_gpus(smi(edit(c15="0x0000000000000060")))
    assert ("software thermal slowdown", "hardware thermal slowdown") == hot.throttle_reasons
    (split,) = query_gpus(smi(edit(c13="Enabled")))
    (idle,) = query_gpus(smi(edit(c15="0x0000000000000001")))
    assert [1, 1, 0] == [len(refusal([gpu], ())) for gpu in (hot, split, idle)]
    processes = compute_processes(smi(H200, "17\n42\n"))
    assert (17, 42) == processes
    assert "17" in refusal([idle], processes, expected=1)[0]
    assert () == refusal([idle], processes, expected=2)


@pytest.mark.parametrize("known", ["clocks_event_reasons", "clocks_throttle_reasons", "none"])
def test_drivers_name_the_throttle_field_differently(known: str) -> None:
    """The field is asked for by its new and its old name; without it the rest is still read."""

    def run(command: Sequence[str]) -> str | None:
        if f"{known}.active" in command[1]:
            return edit(c15="0x0000000000000008")
        return edit(c15="0") if command[1].endswith(",index") else None

    (gpu,) = query_gpus(run)
    assert 143771 << 20 == gpu.memory_bytes
    assert (() if known == "none" else ("hardware slowdown",)) == gpu.throttle_reasons


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300) | st.just(edit(c4="[N/A]", c7="[N/A]", c15="zz", c3="x")))
def test_odd_output_never_raises(text: str) -> None:
    """Whatever nvidia-smi prints, the checks come back."""
    assert diagnose(run=smi(text))


def test_nothing_is_here() -> None:
    """Without a GPU each missing part is named and the error carries exit code 5."""
    with pytest.raises(GpuUnavailable, match="nvidia-smi shows none") as caught:
        require_gpu(none)
    assert 5 == caught.value.exit_code
    missing = missing_parts((), lambda name: False)
    assert 2 == len(missing)


def test_old_card_is_named() -> None:
    """A GPU older than Hopper is named as such."""
    gpus = query_gpus(smi(edit(c1="NVIDIA A100", c3="8.0")))
    assert "NVIDIA A100" in missing_parts(gpus, lambda name: True)[0]


def test_link_checks() -> None:
    """Narrow links warn, an idle card's low generation does not, a profile's rate is compared."""
    narrow = diagnose(run=smi(edit(c8="8")))
    assert "warn" == find(narrow, "GPU 0 link").status
    asleep = diagnose(run=smi(edit(c6="1")))
    assert "ok" == find(asleep, "GPU 0 link").status
    slow = diagnose(run=smi(edit(c7="4")), expected_link_gb_per_s=64.0)
    assert "warn" == find(slow, "GPU 0 link").status
    fine = diagnose(run=smi(H200), expected_link_gb_per_s=64.0)
    assert "63 GB/s each way" in find(fine, "GPU 0 link").found


def test_free_hbm_and_driver() -> None:
    """Memory that others hold and an old driver give warnings."""
    checks = diagnose(run=smi(edit(c5="90000", c2="535.1")))
    assert "warn" == find(checks, "GPU 0 free HBM").status
    assert "warn" == find(checks, "GPU 0 driver").status


def test_host_checks(tmp_path: Path) -> None:
    """Host memory is the smaller of what is available and what the control group allows."""
    (tmp_path / "meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable:    67108864 kB\n")
    group = tmp_path / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("4294967296\n")
    device = tmp_path / "bus/pci/devices/0000:18:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (tmp_path / "class/iommu/dmar0").mkdir(parents=True)
    checks = diagnose(Machine(proc=tmp_path, sys=tmp_path), smi(H200))
    memory = find(checks, "host memory to pin")
    assert ("warn", True) == (memory.status, "4.00 GiB" in memory.found)
    assert "node 1" == find(checks, "GPU 0 NUMA node").found
    assert "active" == find(checks, "IOMMU").found


def test_hostile_bus_id(tmp_path: Path) -> None:
    """A bus id is never used as a path."""
    (tmp_path / "numa_node").write_text("7")
    checks = diagnose(
        Machine(proc=tmp_path, sys=tmp_path), smi(edit(c14="0000:../../../numa_node"))
    )
    assert not [check for check in checks if check.name == "GPU 0 NUMA node"]


def test_report_without_gpu() -> None:
    """The document says that there is no usable GPU and still lists the host."""
    document = to_json(diagnose(run=none))
    assert document["usable_gpu"] is False
    assert {"GPU commands", "Python", "packages"} <= {c["name"] for c in document["checks"]}


def test_query_that_fails_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or failing program gives no output instead of an exception."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_query(["nvidia-smi"]) is None
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert run_query(["nvidia-smi"]) is None
    program.write_text("#!/bin/sh\necho hello\n")
    assert "hello\n" == run_query(["nvidia-smi"])
