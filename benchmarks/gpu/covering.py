"""Linear layers beside gathers that cover a part of them, or all: the slowdown by what is covered.

    python benchmarks/gpu/covering.py OUT.json

Qwen3-8B, 12K. A gather is as long as a share of the linear layers by themselves (both figures of
the loaded profile); 2.5 covers them whole. Rows: ms of a step of linear layers alone, beside the
gather, and of the gather alone; and, with clocks inside, what each group of linear layers took.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.cuda_bench import CudaBench
from gpu_exec.device import query_gpus
from gpu_exec.fit import slowdown
from gpu_exec.probes import LINEAR, TRANSFER, StepProbe
from oasis_sim.model import load_model

SHARES = (0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.5)
BATCHES = (24, 56, 88, 120, 144)
UNIT_BYTES, GB_PER_S, FIXED_MS = 65536 // 8, 50.0, 0.006
LINEAR_STAGES = ("qkv", "output_ffn", "lm_head")


def instrumented(bench: CudaBench, probe: StepProbe) -> dict[str, float]:
    """Return ms of each group of linear layers, by clocks inside."""
    bench.measure_ms(probe, 1)
    stages = bench._step.run(8, warmup=2, stages=True).stage_ms  # noqa: SLF001
    return {name: float(stages.get(name, 0.0)) for name in LINEAR_STAGES}


def main() -> None:
    """Measure every batch and share."""
    model = load_model("qwen3-8b")
    rows: list[dict[str, Any]] = []
    with CudaBench(model, query_gpus()[0]) as bench:
        for batch in BATCHES:
            probe = StepProbe((LINEAR,), batch)
            alone, inside = bench.measure_ms(probe, 1), instrumented(bench, probe)
            for share in SHARES:
                layer_ms = share * alone / model.layers
                units = (layer_ms - FIXED_MS) * 1e6 * GB_PER_S / UNIT_BYTES
                per_head = units / (batch * model.kv_heads)
                pair = replace(probe, stages=(LINEAR, TRANSFER), per_head=per_head)
                moved = replace(probe, stages=(TRANSFER,), per_head=per_head)
                together, covered = bench.measure_ms(pair, 1), instrumented(bench, pair)
                busy = bench.measure_ms(moved, 1)
                row = {
                    "rows": 2 * batch,
                    "share": share,
                    "alone_ms": alone,
                    "together_ms": together,
                    "gather_ms": busy,
                    "slowdown": slowdown(alone, busy, together),
                    "inside_alone_ms": inside,
                    "inside_together_ms": covered,
                }
                rows.append(row)
                print(row, flush=True)
    write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
