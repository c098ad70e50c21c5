"""Check this machine: driver, link, pinned memory, free HBM, software. Read-only and quick."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_exec.device import (
    GpuState,
    Runner,
    compute_processes,
    missing_parts,
    query_gpus,
    refusal,
    run_query,
)
from oasis_sim.text import plain
from oasis_sim.units import format_bytes

OK, WARN, MISSING, INFO = "ok", "warn", "missing", "info"
PCIE_GB_PER_S_PER_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Nominal payload rate of one lane and direction (PCI Express base specifications)."""
MIN_DRIVER = 580
PACKAGES = ("numpy", "numba", "torch", "triton", "nvidia-nccl-cu13", "transformers", "gguf", "nixl")
_SMALL_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class Check:
    """Report one finding: `status` is ok, warn, missing or info."""

    name: str
    status: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Machine:
    """Say where the host's state is read from (tests point this at a folder of their own)."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")


def diagnose(
    machine: Machine = Machine(),
    run: Runner = run_query,
    expected_link_gb_per_s: float | None = None,
) -> tuple[Check, ...]:
    """Return every check; `expected_link_gb_per_s` is what a profile says of the host link."""
    gpus = query_gpus(run)
    checks = [_usable(gpus)]
    for gpu in gpus:
        checks += _gpu_checks(gpu, machine, expected_link_gb_per_s)
    if gpus:
        reasons = refusal(gpus, compute_processes(run))
        state = "; ".join(reasons) or "alone, not throttled"
        advice = "calibrate and validate refuse it until that ends" if reasons else ""
        checks.append(Check("card for measurements", WARN if reasons else OK, state, advice))
    return (*checks, *_host_checks(machine), _packages())


def to_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the document that `doctor --format json` prints."""
    return {
        "format": "oasis-doctor",
        "version": 1,
        "usable_gpu": not any(c.name == "GPU commands" and c.status == MISSING for c in checks),
        "checks": [asdict(check) for check in checks],
    }


def _usable(gpus: Sequence[GpuState]) -> Check:
    missing = missing_parts(gpus)
    if missing:
        return Check(
            "GPU commands",
            MISSING,
            f"missing {'; '.join(missing)}",
            "simulation and `replay --device cpu` work without",
        )
    return Check("GPU commands", OK, f"{len(gpus)} GPU(s)")


def _gpu_checks(gpu: GpuState, machine: Machine, expected: float | None) -> list[Check]:
    name = f"GPU {gpu.index}"
    checks = [Check(name, INFO, f"{gpu.name}, {_size(gpu.memory_bytes)}"), _driver(gpu)]
    free = _size(gpu.free_bytes)
    crowded = bool(gpu.free_bytes and gpu.memory_bytes and gpu.free_bytes < 0.9 * gpu.memory_bytes)
    checks.append(
        Check(
            f"{name} free HBM",
            WARN if crowded else OK if gpu.free_bytes else INFO,
            free,
            "something else holds memory; runs get less than the profile says" if crowded else "",
        )
    )
    checks.append(_link(gpu, expected))
    node = _read(machine.sys / "bus/pci/devices" / _sysfs_bus(gpu.bus_id) / "numa_node")
    if node is not None and node.lstrip("-").isdigit():
        text = "not stated" if node == "-1" else f"node {node}"
        checks.append(
            Check(f"{name} NUMA node", INFO, text, "pin host memory there" if node != "-1" else "")
        )
    return checks


def _driver(gpu: GpuState) -> Check:
    major = gpu.driver.split(".")[0]
    old = major.isdigit() and int(major) < MIN_DRIVER
    advice = f"measured with {MIN_DRIVER} (CUDA 13) and newer" if old else ""
    return Check(f"GPU {gpu.index} driver", WARN if old else OK, gpu.driver, advice)


def _link(gpu: GpuState, expected: float | None) -> Check:
    """Judge the link by its best state: an idle card lowers its generation to save power."""
    name = f"GPU {gpu.index} link"
    if gpu.link_generation_max is None or gpu.link_width is None:
        return Check(name, INFO, "not stated by the driver")
    lane = PCIE_GB_PER_S_PER_LANE.get(gpu.link_generation_max)
    nominal = lane * gpu.link_width if lane else None
    found = (
        f"x{gpu.link_width} of x{gpu.link_width_max or '?'}, generation "
        f"{gpu.link_generation or '?'} now, {gpu.link_generation_max} at most"
    )
    if nominal is not None:
        found += f" ({nominal:.0f} GB/s each way)"
    if gpu.link_width_max and gpu.link_width < gpu.link_width_max:
        return Check(name, WARN, found, "fewer lanes than the card has: check slot and riser")
    if expected is not None and nominal is not None and nominal < 0.95 * expected:
        return Check(name, WARN, found, f"the profile expects {expected:.0f} GB/s")
    return Check(name, OK, found)


def _host_checks(machine: Machine) -> list[Check]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    checks = [
        Check("processor", INFO, f"{platform.machine()}, {os.cpu_count()} logical cores"),
        Check("Python", INFO, platform.python_version()),
        Check(
            "locked memory limit",
            OK if unlimited else INFO,
            "unlimited" if unlimited else format_bytes(soft, binary=True),
            "" if unlimited else "the CUDA driver pins on its own account; RDMA needs `ulimit -l`",
        ),
    ]
    available = _meminfo(machine, "MemAvailable")
    limit = _cgroup_limit(machine)
    if available is not None:
        text = f"{format_bytes(available, binary=True)} available"
        if limit is not None:
            text += f", control group allows {format_bytes(limit, binary=True)}"
        room = available if limit is None else min(available, limit)
        low = room < 8 << 30
        advice = "pin in pieces; runs alias host units where this is less than modelled"
        checks.append(Check("host memory to pin", WARN if low else OK, text, advice))
    iommu = machine.sys / "class/iommu"
    try:
        active = any(iommu.iterdir())
    except OSError:
        active = False
    if active:
        checks.append(Check("IOMMU", INFO, "active", "compare the measured link with the profile"))
    return checks


def _packages() -> Check:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} -")
    return Check("packages", INFO, plain(", ".join(found)))


def _size(size: int | None) -> str:
    return "not stated" if size is None else format_bytes(size, binary=True)


def _sysfs_bus(bus_id: str) -> str:
    """Return the kernel's spelling of a bus id: a four-digit domain instead of eight."""
    domain, _, rest = bus_id.partition(":")
    safe = rest.replace(":", "").replace(".", "").isalnum()
    return f"{domain[-4:]}:{rest}" if safe and "/" not in bus_id else "none"


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_SMALL_FILE_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def _meminfo(machine: Machine, key: str) -> int | None:
    for line in (_read(machine.proc / "meminfo") or "").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == f"{key}:" and words[1].isdigit():
            return int(words[1]) << 10
    return None


def _cgroup_limit(machine: Machine) -> int | None:
    for name in ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(machine.sys / name)
        if text and text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return None
