# ruff: noqa: SLF001 - joins the devices of an executor anew, which nobody else does
"""A step split over two GPUs: all-reduces and transfers on and off, by how the gather is arranged.

    PYTHONPATH=. python benchmarks/gpu/two_ablations.py RUN_DIR OUT_DIR

Per arrangement five repeats of the run's window, each the mean of its steps, and ms per step of the
stages from one instrumented window. Of the all-reduces of its last step the device that comes last
to each shows the time without waiting (`own_ms`). What it all costs is in ablations-two-h200.json;
the run is then replayed with the best gather, and with NCCL's protocols one by one.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import machine, write_rows
from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.kernels.config import StageSwitches
from gpu_exec.nccl import NcclGroup
from gpu_exec.replay import replay
from gpu_exec.replay_table import replay_lines
from gpu_exec.run_dir import load_run_schedule

HOST_BYTES = 4 << 30
REPEATS = 5
PROTOCOLS = ("LL", "LL128", "Simple")
BASE = {"gather_ctas": 8, "gather_ring": 12, "gather_exclusive": True}
GATHERS = [
    BASE,
    {**BASE, "gather_ring": 6},
    {**BASE, "gather_ring": 3},
    {**BASE, "gather_ctas": 4},
    {**BASE, "gather_ctas": 4, "gather_ring": 6},
    {**BASE, "gather_ctas": 4, "gather_ring": 4},
    {**BASE, "gather_ctas": 2},
    {**BASE, "gather_exclusive": False},
]


def measure(executor: CudaExecutor, switches: dict[str, bool], **gather: Any) -> dict[str, Any]:
    """Return the times of one arrangement."""
    executor.reconfigure(stages=StageSwitches(**switches), **gather)
    repeats = [statistics.mean(window) for window in executor.window_ms(REPEATS)]
    row = {**switches, **gather, "step_ms": statistics.median(repeats), "repeats_ms": repeats}
    row["protocol"] = os.environ["NCCL_PROTO"]
    row["stage_ms"] = dict(executor.stage_ms())
    spans = [step.spans_ms("all_reduce") for step in executor._steps]
    row["own_ms"] = sum(map(min, zip(*spans, strict=True)))
    row["device_ms"] = [sum(each) for each in spans]
    return row


def sweep(executor: CudaExecutor, path: Path) -> list[dict[str, Any]]:
    """Measure all arrangements; write and print every row."""
    plan: list[tuple[dict[str, bool], dict[str, Any]]] = [
        ({"all_reduce": on, "transfer": False}, BASE) for on in (True, False)
    ]
    plan += [({"all_reduce": on, "transfer": True}, g) for g in GATHERS for on in (True, False)]
    rows: list[dict[str, Any]] = []
    for switches, gather in plan:
        rows.append(measure(executor, switches, **gather))
        keep(executor, path, rows)
    return rows


def protocols(executor: CudaExecutor, path: Path, rows: list[dict[str, Any]]) -> None:
    """Measure the usual gather with each of NCCL's protocols; write and print every row."""
    for protocol in PROTOCOLS:
        join_again(executor, protocol)
        rows.append(measure(executor, {"all_reduce": True, "transfer": True}, **BASE))
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
    """Measure all arrangements, then replay with the one whose steps are shortest."""
    schedule = load_run_schedule(run)
    executor = CudaExecutor(schedule, 2, HOST_BYTES)
    try:
        path = Path(out, "ablations-two-h200.json")
        rows = sweep(executor, path)
        whole = [row for row in rows if row["all_reduce"] and row["transfer"]]
        best = min(whole, key=lambda row: row["step_ms"])
        gather = {name: best[name] for name in BASE}
        executor.reconfigure(stages=StageSwitches(), **gather)
        report = replay(schedule, executor, Path(run).name)
        document = json.dumps({**report.to_json(), **machine(), "gather": gather}, indent=2)
        Path(out, "replay-two-best-h200.json").write_text(document + "\n", encoding="utf-8")
        print(gather, *replay_lines(report), sep="\n", flush=True)
        report.check()
        protocols(executor, path, rows)
    finally:
        executor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
