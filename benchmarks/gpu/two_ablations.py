# ruff: noqa: SLF001 - joins the devices of an executor anew, which nobody else does
"""A step split over two GPUs: all-reduces and transfers on and off, gathers, NCCL's protocols.

    PYTHONPATH=. python benchmarks/gpu/two_ablations.py RUN_DIR OUT_DIR

Per arrangement five repeats of the run's window, each the mean of its steps, and ms per step of the
stages from one instrumented window. Of the all-reduces of its last step the device that comes last
to each shows the time without waiting (`own_ms`). All rows go to ablations-two-h200.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.collectives import CHOICE
from benchmarks.gpu.common import write_rows
from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.kernels.config import StageSwitches
from gpu_exec.nccl import NcclGroup
from gpu_exec.run_dir import load_run_schedule

HOST_BYTES = 4 << 30
REPEATS = 5
BASE = {"gather_ctas": 8, "gather_ring": 12, "gather_exclusive": True}
GATHERS = [
    {**BASE, "gather_ring": 6},
    {**BASE, "gather_ctas": 4},
    {**BASE, "gather_ctas": 4, "gather_ring": 6},
    {**BASE, "gather_exclusive": False},
]


def measure(executor: CudaExecutor, switches: dict[str, bool], **gather: Any) -> dict[str, Any]:
    """Return the times of one arrangement."""
    executor.reconfigure(stages=StageSwitches(**switches), **gather)
    repeats = [statistics.mean(window) for window in executor.window_ms(REPEATS)]
    row = {**switches, **gather, "step_ms": statistics.median(repeats), "repeats_ms": repeats}
    row["protocol"] = os.environ["NCCL_PROTO"]
    row["stage_ms"] = dict(executor.stage_times().stage_ms)
    spans = [step.spans_ms("all_reduce") for step in executor._steps]
    row["own_ms"] = sum(map(min, zip(*spans, strict=True)))
    row["device_ms"] = [sum(each) for each in spans]
    return row


def sweep(executor: CudaExecutor, path: Path) -> None:
    """Measure all arrangements; write and print every row."""
    own = os.environ["NCCL_PROTO"]
    plan: list[tuple[str, bool, bool, dict[str, Any]]] = [
        (own, reduce, transfer, BASE) for transfer in (True, False) for reduce in (True, False)
    ]
    plan += [(own, True, True, gather) for gather in GATHERS]
    plan += [(CHOICE, True, transfer, BASE) for transfer in (True, False)]
    plan.append(("LL128", True, True, BASE))
    rows: list[dict[str, Any]] = []
    for protocol, reduce, transfer, gather in plan:
        if protocol != os.environ["NCCL_PROTO"]:
            join_again(executor, protocol)
        switches = {"all_reduce": reduce, "transfer": transfer}
        rows.append(measure(executor, switches, **gather))
        keep(executor, path, rows)


def keep(executor: CudaExecutor, path: Path, rows: list[dict[str, Any]]) -> None:
    """Write what was measured and print its last row."""
    write_rows(str(path), rows, {"gpus": executor.info.devices, "device": executor.info.driver})
    shown = {name: value for name, value in rows[-1].items() if name != "repeats_ms"}
    shown["stage_ms"] = {name: round(ms, 2) for name, ms in shown["stage_ms"].items()}
    print(json.dumps(shown), flush=True)


def join_again(executor: CudaExecutor, protocol: str) -> None:
    """Join the devices anew, with one of NCCL's protocols."""
    for step in executor._steps:
        step._graphs.clear()
    executor._group.close()
    os.environ["NCCL_PROTO"] = protocol
    executor._group = NcclGroup(executor.info.devices)
    for step in executor._steps:
        step._sums._group = executor._group


def main(run: str, out: str) -> None:
    """Open the run's schedule on two GPUs and measure all arrangements."""
    executor = CudaExecutor(load_run_schedule(run), 2, HOST_BYTES)
    try:
        sweep(executor, Path(out, "ablations-two-h200.json"))
    finally:
        executor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
