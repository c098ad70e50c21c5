"""Copies that the host submits: time per unit alone and inside a step, by how far it runs ahead.

    python benchmarks/gpu/host_copies.py OUT.json

Qwen3-8B, batch 16, 16K, random moves. Each row has the medians of eight steps, ten times over;
`copies_ahead` 0 submits without waiting for earlier copies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.step import QWEN3_8B, DecodeStep, StageSwitches, StepConfig, synthetic_moves

CONTEXT, BATCH = 16_382, 16
STEPS, REPEATS = 8, 10
ALONE = StageSwitches(
    scan=False, selection=False, mirror=False, attention=False, linear=False, draft=False
)
STAGES = {"copies alone": ALONE, "whole step": StageSwitches()}


def measure(step: DecodeStep, transport: str, ahead: int) -> list[dict[str, Any]]:
    """Return the rows of one way of copying, alone and inside a step."""
    rows: list[dict[str, Any]] = []
    for name, stages in STAGES.items():
        step.reconfigure(transport=transport, stages=stages, copies_ahead=ahead)
        runs = [step.run(STEPS, warmup=1) for _ in range(REPEATS)]
        times = [run.median_ms for run in runs]
        units = runs[0].moved_units // STEPS
        row = {
            "transport": transport,
            "stages": name,
            "unit_bytes": step.config.unit_bytes,
            "units_per_layer": units // QWEN3_8B.layers,
            "copies_ahead": ahead,
            "step_ms": [round(time, 3) for time in sorted(times)],
            "us_per_unit": round(sorted(times)[REPEATS // 2] * 1e3 / units, 3),
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Measure both ways at two unit sizes and three amounts."""
    rows: list[dict[str, Any]] = []
    for block in (16, 32):
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
        for per_head in (1.0, 3.0, 6.0):
            step.load(synthetic_moves(config, 4, per_head, CONTEXT))
            for ahead in (4, 0):
                rows += measure(step, "copy_engine", ahead)
            if per_head < 6.0:
                rows += measure(step, "naive", 4)
        step.close()
    write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
