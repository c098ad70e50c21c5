"""Batches of copies of 8 KB: us per unit by what runs beside them, how many, and the host's pool.

    python benchmarks/gpu/small_copies.py OUT.json

Qwen3-8B, 12K, blocks of 16. Every row is a step with the named stages, measured in turns with the
others of its batch and pool: ms per step of each turn, and of the same stages without the copies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.cuda_bench import switches
from gpu_exec.probes import ATTENTION, DRAFT, LINEAR, MIRROR, SCAN, SELECTION, TRANSFER
from gpu_exec.step import QWEN3_8B, DecodeStep, StepConfig, synthetic_moves

CONTEXT, MOVE_STEPS, STEPS, TURNS = 12_288, 4, 12, 3
POOLS = ((30, 2), (30, 4), (30, 2), (56, 2))
"""Requests, and GiB of pinned host memory."""
WHOLE = (LINEAR, ATTENTION, SCAN, SELECTION, MIRROR, DRAFT)
FORMS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("linear", (LINEAR,), 1.5),
    ("linear", (LINEAR,), 5.0),
    ("linear, attention", (LINEAR, ATTENTION), 5.0),
    ("all", WHOLE, 5.0),
)


def main() -> None:
    """Measure every form for every batch and pool."""
    rows: list[dict[str, Any]] = []
    for batch, gib in POOLS:
        config = StepConfig(QWEN3_8B, batch, CONTEXT, transport="copy_engine", host_bytes=gib << 30)
        step = DecodeStep(config)
        lists = {n: synthetic_moves(config, MOVE_STEPS, n, CONTEXT) for n in (1.5, 5.0)}
        found: list[dict[str, Any]] = []
        for name, stages, per_head in FORMS:
            step.load(lists[per_head])
            step.reconfigure(stages=switches(stages))
            without = step.run(STEPS, warmup=2).median_ms if stages else 0.0
            found.append(
                {
                    "beside": name,
                    "batch": batch,
                    "host_gib": gib,
                    "per_head": per_head,
                    "without_ms": round(without, 4),
                    "step_ms": [],
                }
            )
        for _ in range(TURNS):
            for row, (_, stages, per_head) in zip(found, FORMS, strict=True):
                step.load(lists[per_head])
                step.reconfigure(stages=switches((*stages, TRANSFER)))
                times = step.run(STEPS, warmup=2)
                units = times.moved_units / STEPS
                row["units"] = round(units)
                row["step_ms"].append(round(times.median_ms, 4))
        for row in found:
            hidden = row["without_ms"] / QWEN3_8B.layers
            each = [round(1e3 * (ms - hidden) / row["units"], 4) for ms in row["step_ms"]]
            row["us_per_unit"] = each
            print({k: v for k, v in row.items() if k != "step_ms"}, flush=True)
        rows += found
        step.close()
        write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
