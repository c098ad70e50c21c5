"""Selection by clocks: beside attention alone and in whole steps, by batch and context.

    python benchmarks/gpu/selection_beside.py OUT.json

Qwen3-8B. Rows: us per layer that selection takes from the start of its first block to the end of
its last, and ms of scan and attention in the same step, for a step of attention, scan and selection
and for one with everything on and a gather of 0.05 of the budget.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.cuda_bench import CudaBench
from gpu_exec.device import query_gpus
from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    MIRROR,
    SCAN,
    SELECTION,
    TRANSFER,
    StepProbe,
)
from oasis_sim.model import load_model

K = 1024
POINTS = (
    (12, 6 * K),
    (12, 24 * K),
    (12, 32 * K),
    (48, 6 * K),
    (48, 24 * K),
    (112, 6 * K),
    (112, 12 * K),
    (112, 24 * K),
    (156, 6 * K),
    (156, 12 * K),
)
FORMS = {
    "attention, scan, selection": (ATTENTION, SCAN, SELECTION),
    "all but transfers": (LINEAR, ATTENTION, SCAN, SELECTION, DRAFT, MIRROR),
    "all, gather": (LINEAR, ATTENTION, SCAN, SELECTION, DRAFT, MIRROR, TRANSFER),
}
PER_HEAD = 6.0


def main() -> None:
    """Measure every point in every form."""
    model = load_model("qwen3-8b")
    rows: list[dict[str, Any]] = []
    with CudaBench(model, query_gpus()[0]) as bench:
        for batch, context in POINTS:
            for name, stages in FORMS.items():
                moved = PER_HEAD if TRANSFER in stages else 0.0
                probe = StepProbe(stages, batch, context, per_head=moved)
                plain = bench.measure_ms(probe, 1)
                found = bench._step.run(8, warmup=2, stages=True).stage_ms  # noqa: SLF001
                row = {
                    "form": name,
                    "batch": batch,
                    "context_tokens": context,
                    "step_ms": plain,
                    "selection_us_per_layer": 1e3 * found["selection"] / model.layers,
                    "prediction_ms": found["prediction"],
                    "attention_ms": found["attention"],
                }
                rows.append(row)
                print(row, flush=True)
                write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
