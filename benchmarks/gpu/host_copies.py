"""Copies that the host submits: GB/s alone and inside a step, by threads that submit.

    python benchmarks/gpu/host_copies.py OUT.json

Qwen3-8B, batch 24, 16K, random moves. Each row has the medians of four steps, twelve times over,
in the order of time. Batches of units of three sizes; single copies beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.step import QWEN3_8B, DecodeStep, StageSwitches, StepConfig, synthetic_moves

CONTEXT, BATCH = 16_382, 24
STEPS, REPEATS = 4, 12
ALONE = StageSwitches(
    scan=False, selection=False, mirror=False, attention=False, linear=False, draft=False
)
STAGES = {"copies alone": ALONE, "whole step": StageSwitches()}
THREADS = (1, 2, 3, 4, 6)
USUAL_THREADS = 4


def measure(step: DecodeStep, transport: str, threads: int) -> list[dict[str, Any]]:
    """Return the rows of one way of copying, alone and inside a step."""
    rows: list[dict[str, Any]] = []
    step.reconfigure(transport=transport, copy_threads=threads)
    for name, stages in STAGES.items():
        step.reconfigure(stages=stages)
        runs = [step.run(STEPS, warmup=1) for _ in range(REPEATS)]
        times = [run.median_ms for run in runs]
        middle = sorted(times)[REPEATS // 2]
        check = step.verify()
        row = {
            "transport": transport,
            "stages": name,
            "unit_bytes": step.config.unit_bytes,
            "units_per_layer": runs[0].moved_units // STEPS // QWEN3_8B.layers,
            "threads": threads,
            "gb_per_s": round(runs[0].moved_bytes / STEPS / middle / 1e6, 2),
            "spread_pct": round(100 * (max(times) - min(times)) / middle, 1),
            "wrong_units": check.wrong_units,
            "step_ms": [round(time, 3) for time in times],
        }
        rows.append(row)
        print({key: value for key, value in row.items() if key != "step_ms"}, flush=True)
    return rows


def main() -> None:
    """Measure by threads, then by amount, for three sizes of units."""
    rows: list[dict[str, Any]] = []
    for block in (16, 32, 64):
        chosen = 2048 // block
        config = StepConfig(
            QWEN3_8B,
            BATCH,
            CONTEXT,
            block_tokens=block,
            chosen_blocks=chosen,
            pool_blocks=chosen,
            host_bytes=2 << 30,
        )
        step = DecodeStep(config)
        step.load(synthetic_moves(config, 4, 4.0, CONTEXT))
        for threads in THREADS:
            rows += measure(step, "copy_engine", threads)
        for per_head in (0.5, 1.0, 8.0):
            step.load(synthetic_moves(config, 4, per_head, CONTEXT))
            rows += measure(step, "copy_engine", USUAL_THREADS)
        step.load(synthetic_moves(config, 4, 1.0, CONTEXT))
        rows += measure(step, "naive", 1)
        step.close()
        write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
