"""What GPUs are here and in what state, read from nvidia-smi without importing torch.

Nothing here changes a setting. The query is a plain subprocess with a time limit; its output is
treated as text from outside: unknown fields become None, never an exception.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oasis_sim.errors import GpuUnavailable
from oasis_sim.text import plain

QUERY_TIMEOUT_S = 20
HOPPER = (9, 0)
FIELDS = (
    "index",
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.free",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "clocks.sm",
    "clocks.max.sm",
    "utilization.gpu",
    "mig.mode.current",
    "pci.bus_id",
)
THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", "index")
"""The same field under the names of newer and older drivers; `index` where there is neither."""
# Reasons that slow a busy card down: power brake, hardware, thermal and power caps. Idle (0x1) and
# application clocks (0x2) are normal.
THROTTLE_MASK = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
THROTTLE_NAMES = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}

Runner = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class GpuState:
    """Hold one GPU's state; None where the driver does not say. Memory is in bytes."""

    index: int
    name: str
    driver: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int | None
    free_bytes: int | None
    link_generation: int | None
    link_generation_max: int | None
    link_width: int | None
    link_width_max: int | None
    sm_mhz: int | None
    sm_mhz_max: int | None
    throttle: int | None
    busy_pct: int | None
    mig: bool
    bus_id: str

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """Name the reasons that slow the card down right now."""
        active = (self.throttle or 0) & THROTTLE_MASK
        return tuple(name for bit, name in THROTTLE_NAMES.items() if active & bit)


def run_query(command: Sequence[str]) -> str | None:
    """Run a command and return its output, None when it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=QUERY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def query_gpus(run: Runner = run_query) -> tuple[GpuState, ...]:
    """Return the state of every GPU that nvidia-smi sees, none when there is no nvidia-smi."""
    for throttle in THROTTLE_FIELDS:
        names = ",".join((*FIELDS, throttle))
        text = run(["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader,nounits"])
        states = [_state(line) for line in (text or "").splitlines()]
        found = tuple(state for state in states if state is not None)
        if found:
            return found
    return ()


def compute_processes(run: Runner = run_query) -> tuple[int, ...]:
    """Return the ids of the processes that compute on any GPU, as the driver numbers them."""
    text = run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits"])
    return tuple(sorted({int(word) for word in (text or "").split() if word.isdigit()}))


def missing_parts(
    gpus: Sequence[GpuState], has_module: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """Name what keeps the GPU commands from running here; empty when nothing does."""
    found = has_module or (lambda name: importlib.util.find_spec(name) is not None)
    missing = []
    if not gpus:
        missing.append("an NVIDIA GPU with a driver (nvidia-smi shows none)")
    elif not any(gpu.compute_capability and gpu.compute_capability >= HOPPER for gpu in gpus):
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        missing.append(f"a Hopper GPU or newer (found {names})")
    if not found("torch"):
        missing.append("the Python package torch")
    return tuple(missing)


def require_gpu(run: Runner = run_query) -> tuple[GpuState, ...]:
    """Return the GPUs or raise GpuUnavailable saying what is missing."""
    gpus = query_gpus(run)
    missing = missing_parts(gpus)
    if missing:
        raise GpuUnavailable(
            f"no usable GPU: missing {'; '.join(missing)}. `oasis-sim doctor` shows more; "
            "`oasis-sim replay --device cpu` needs no GPU"
        )
    return gpus


def refusal(
    gpus: Sequence[GpuState], processes: Sequence[int], expected: int = 0
) -> tuple[str, ...]:
    """Say why a card in this state gives no numbers to keep: shared, throttled or split.

    `expected` processes are our own (their ids differ inside a container).
    """
    reasons = []
    if len(processes) > expected:
        reasons.append(f"other processes compute on it (ids {', '.join(map(str, processes))})")
    for gpu in gpus:
        if gpu.throttle_reasons:
            reasons.append(f"GPU {gpu.index} is throttled ({', '.join(gpu.throttle_reasons)})")
        if gpu.mig:
            reasons.append(f"GPU {gpu.index} is split (MIG)")
    return tuple(reasons)


def _state(line: str) -> GpuState | None:
    """Parse one line of the query's CSV; None when it is not one."""
    cells = [plain(cell.strip()) for cell in line.split(",")]
    if len(cells) != len(FIELDS) + 1 or not cells[0].isdigit():
        return None
    value = dict(zip(FIELDS, cells, strict=False))
    mib = {key: _int(value[key]) for key in ("memory.total", "memory.free")}
    return GpuState(
        index=int(cells[0]),
        name=value["name"],
        driver=value["driver_version"],
        compute_capability=_capability(value["compute_cap"]),
        memory_bytes=None if mib["memory.total"] is None else mib["memory.total"] << 20,
        free_bytes=None if mib["memory.free"] is None else mib["memory.free"] << 20,
        link_generation=_int(value["pcie.link.gen.current"]),
        link_generation_max=_int(value["pcie.link.gen.max"]),
        link_width=_int(value["pcie.link.width.current"]),
        link_width_max=_int(value["pcie.link.width.max"]),
        sm_mhz=_int(value["clocks.sm"]),
        sm_mhz_max=_int(value["clocks.max.sm"]),
        throttle=_hex(cells[-1]),
        busy_pct=_int(value["utilization.gpu"]),
        mig=value["mig.mode.current"].lower() == "enabled",
        bus_id=value["pci.bus_id"].lower(),
    )


def _int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _hex(text: str) -> int | None:
    """Read a bit mask such as 0x0000000000000004; None for anything else."""
    try:
        return int(text, 16) if text.startswith("0x") and len(text) < 20 else None
    except ValueError:
        return None


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    if major.isdigit() and minor.isdigit():
        return int(major), int(minor)
    return None
