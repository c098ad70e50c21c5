"""A step split over two GPUs with and without all-reduces, with and without transfers.

    PYTHONPATH=. python benchmarks/gpu/two_ablations.py RUN_DIR OUT.json

Per arrangement five repeats of the run's window, each the mean of its steps, and ms per step of the
stages from one instrumented window. What an all-reduce costs beside transfers and without them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.executor_cuda import CudaExecutor
from gpu_exec.kernels.config import StageSwitches
from gpu_exec.run_dir import load_run_schedule

HOST_BYTES = 4 << 30
REPEATS = 5
SWITCHES = [
    {"all_reduce": all_reduce, "transfer": transfer}
    for transfer in (True, False)
    for all_reduce in (True, False)
]


def measure(executor: CudaExecutor, switches: dict[str, bool]) -> dict[str, Any]:
    """Return the times of one arrangement."""
    executor.reconfigure(stages=StageSwitches(**switches))
    repeats = [statistics.mean(window) for window in executor.window_ms(REPEATS)]
    row = {**switches, "step_ms": statistics.median(repeats), "repeats_ms": repeats}
    return row | {"stage_ms": dict(executor.stage_ms())}


def main(run: str, out: str) -> None:
    """Measure all arrangements and write them."""
    executor = CudaExecutor(load_run_schedule(run), 2, HOST_BYTES)
    rows: list[dict[str, Any]] = []
    try:
        for switches in SWITCHES:
            rows.append(measure(executor, switches))
            write_rows(out, rows, {"gpus": executor.info.devices, "device": executor.info.driver})
            print(switches, round(rows[-1]["step_ms"], 3), rows[-1]["stage_ms"], flush=True)
    finally:
        executor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
