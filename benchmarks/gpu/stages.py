"""Stages by clocks in the step: what the clocks take, and whether stages and gaps are the step.

    python benchmarks/gpu/stages.py OUT.json

Qwen3-8B, 12K. Rows: ms of a step without and with clocks, of an empty span, of every stage without
and with the clocks in it, and what the step without clocks takes beyond the stages of the compute
stream and the gaps between them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.gpu.common import write_rows
from gpu_exec.cuda_bench import CudaBench
from gpu_exec.device import query_gpus
from gpu_exec.kernels.marks import NEVER
from gpu_exec.probes import (
    ATTENTION,
    DRAFT,
    LINEAR,
    MIRROR,
    SCAN,
    SELECTION,
    TRANSFER,
    GapProbe,
    StepProbe,
)
from oasis_sim.model import load_model

STEPS = 12
COMPUTE = ("qkv", "prediction", "attention", "output_ffn")
ONCE = ("lm_head", "draft")
QUIET = (LINEAR, ATTENTION, SCAN, SELECTION, DRAFT, MIRROR)
PROBES = {
    "linear, attention": StepProbe((LINEAR, ATTENTION), 24),
    "all but transfers": StepProbe(QUIET, 24),
    "all, short gather": StepProbe((*QUIET, TRANSFER), 24, per_head=1.0),
    "all, long gather": StepProbe((*QUIET, TRANSFER), 24, per_head=8.0),
    "large, linear": StepProbe((LINEAR,), 112),
    "large, all but transfers": StepProbe(QUIET, 112),
    "large, all, gather": StepProbe((*QUIET, TRANSFER), 112, per_head=1.0),
    "dense": StepProbe((LINEAR, ATTENTION), 24, dense=True),
}


def measured(bench: CudaBench, probe: StepProbe, gap_ms: float) -> dict[str, Any]:
    """Return the figures of one probe."""
    plain = bench.measure_ms(probe, 1)
    step = bench._step  # noqa: SLF001
    times = step.run(STEPS, warmup=3, stages=True)
    ticks = step._last_marks()._times.cpu().numpy()  # noqa: SLF001
    ticks = ticks[(ticks > 0) & (ticks < NEVER)]
    there = [name for name in COMPUTE if times.stage_ms.get(name, 0.0) > 0]
    total = sum(times.stage_ms.get(name, 0.0) for name in (*there, *ONCE))
    gaps = step.config.shape.layers * len(there) * gap_ms
    return {
        "step_ms": plain,
        "clocked_step_ms": times.median_ms,
        "empty_us": 1e3 * times.empty_ms,
        "clock_resolution_ns": int(np.gcd.reduce(np.diff(ticks))),
        "stages_ms": total,
        "gaps_ms": gaps,
        "rest_ms": plain - total - gaps,
        "stage_ms": dict(times.stage_ms),
        "raw_stage_ms": dict(times.raw_stage_ms),
    }


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its times in whole microseconds."""
    return {
        key: rounded(value)
        if isinstance(value, dict)
        else round(value, 3)
        if isinstance(value, float)
        else value
        for key, value in row.items()
    }


def main() -> None:
    """Measure every probe."""
    model = load_model("qwen3-8b")
    rows: list[dict[str, Any]] = []
    with CudaBench(model, query_gpus()[0]) as bench:
        gap_ms = bench.measure_ms(GapProbe(), 1)
        print(f"gap of a chain of empty kernels: {1e3 * gap_ms:.3f} us", flush=True)
        for name, probe in PROBES.items():
            row = {"probe": name, "batch": probe.batch, **measured(bench, probe, gap_ms)}
            rows.append(row)
            print(rounded(row), flush=True)
            write_rows(sys.argv[1], rows, {"gap_us": 1e3 * gap_ms})


if __name__ == "__main__":
    main()
