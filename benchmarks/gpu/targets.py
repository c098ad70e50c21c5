"""OasisKV against dense decoding in a KV pool of 52 GiB, each at the largest batch that fits.

    python benchmarks/gpu/targets.py OUT.json CAP2.npz CAP6.npz

Everything on: scan, selection, transfer, mirror of new blocks, draft row, draft head. Moves come
from an attention trace (trace_moves.py). Qwen3-8B, 16K context, block 16, 128 chosen blocks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from benchmarks.gpu.trace_moves import rows_of
from gpu_exec.kernels.footprint import largest_batch, request_bytes
from gpu_exec.step import QWEN3_8B, DecodeStep, StageSwitches, StepConfig, synthetic_moves

CONTEXT = 16382  # with the draft token: 16,384 positions, 1,024 blocks
POOL_BYTES = 52 << 30
STEPS = 8
TMA = {"transport": "tma_gather", "gather_ctas": 8}
WINDOW, RESIDENT = {"arrangement": "window"}, {"arrangement": "resident"}
BESIDE = {**WINDOW, "prediction": "stream"}
CHOICES: dict[str, dict[str, Any]] = {
    "window, tma 8": {**TMA, **WINDOW},
    "window, tma 8, scan beside attention": {**TMA, **BESIDE},
    "resident, tma 8": {**TMA, **RESIDENT},
    "always, tma 8": TMA,
}
FORMATS = {
    "bf16 keys": {"key_format": "bf16"},
    "fp8 keys": {"key_format": "fp8"},
    "fp8 keys, fp8 KV of the draft head": {"key_format": "fp8", "draft_kv": "fp8"},
}
BASE = {
    "gemm": "library",
    "gather_threads": 256,
    "prediction": "inline",
    "arrangement": "always",
    "gather_ring": 12,
    "early_launch": True,
}
rows: list[dict[str, Any]] = []


def report(step: DecodeStep, name: str, **extra: Any) -> None:
    """Measure the step as it is configured and keep the row."""
    steps = 3 * STEPS
    times = step.run(steps, warmup=4)
    c = step.config
    row = {
        "name": name,
        "batch": c.batch,
        "key_format": c.key_format,
        "draft_kv": c.draft_kv,
        "dense": c.dense,
        "request_mb": round(request_bytes(c) / 1e6, 1),
        "step_ms": round(times.median_ms, 3),
        "spread_pct": round(times.spread_pct, 2),
        "tokens_per_s": round(c.batch / times.median_ms * 1e3, 1),
        "moved_mb_per_step": round(times.moved_bytes / steps / 1e6, 1),
        "link_gb_per_s": round(times.moved_bytes / steps / times.median_ms / 1e6, 1),
        **extra,
    }
    if times.moved_units:
        check = step.verify()
        row["verified_units"] = check.checked_units - check.wrong_units
        row["wrong_units"] = check.wrong_units
    rows.append(row)
    print(row, flush=True)


def sparse(formats: dict[str, str], files: dict[float, str]) -> None:
    """Measure one set of formats: without transfers, then every arrangement at both ratios."""
    base = StepConfig(QWEN3_8B, 1, CONTEXT, **formats, **CHOICES["window, tma 8"])
    step = DecodeStep(largest_batch(base, POOL_BYTES))
    step.load(synthetic_moves(step.config, STEPS, 0.0, CONTEXT))
    step.reconfigure(stages=StageSwitches(transfer=False))
    report(step, "no transfer", ratio=0.0)
    step.reconfigure(stages=StageSwitches(transfer=False, draft=False))
    report(step, "no transfer, no draft head", ratio=0.0)
    step.reconfigure(stages=StageSwitches(transfer=False, draft=False, mirror=False))
    report(step, "no transfer, no draft head, no mirror", ratio=0.0)
    step.reconfigure(stages=StageSwitches())
    for ratio, path in files.items():
        step.load(rows_of(step.config, path, STEPS, CONTEXT))
        for name, changes in CHOICES.items():
            step.reconfigure(**{**BASE, **changes})
            report(step, name, ratio=ratio)
    step.close()


def selection_cost() -> None:
    """Measure a step of batch 64 with and without selection: what selection adds per layer."""
    config = StepConfig(QWEN3_8B, 64, CONTEXT, host_bytes=1 << 30)
    step = DecodeStep(config)
    step.load(synthetic_moves(config, STEPS, 0.0, CONTEXT))
    medians = []
    for on in (True, False, True, False):
        step.reconfigure(stages=StageSwitches(transfer=False, draft=False, selection=on))
        report(step, f"batch 64, selection {'on' if on else 'off'}", ratio=0.0)
        medians.append(rows[-1]["step_ms"])
    step.close()
    added = (medians[0] + medians[2] - medians[1] - medians[3]) / 2 / QWEN3_8B.layers * 1e3
    rows.append({"name": "selection beyond the scan, batch 64", "us_per_layer": round(added, 2)})
    print(rows[-1], flush=True)


def dense_tokens_per_s() -> float:
    """Measure the dense step both with and without early launches; return the better figure."""
    base = StepConfig(QWEN3_8B, 1, CONTEXT, dense=True)
    dense = DecodeStep(largest_batch(base, POOL_BYTES))
    dense.load(synthetic_moves(dense.config, STEPS, 0.0, CONTEXT))
    for early in (True, False):
        dense.reconfigure(early_launch=early)
        report(dense, f"dense, {'' if early else 'no '}early launch", ratio=0.0)
    dense.close()
    return max(row["tokens_per_s"] for row in rows)


def main() -> None:
    """Measure dense and both key formats and print the ratios."""
    files = {0.02: sys.argv[2], 0.05: sys.argv[3]}
    dense = dense_tokens_per_s()
    best = {}
    for name, formats in FORMATS.items():
        first = len(rows)
        sparse(formats, files)
        for ratio in files:
            options = [row for row in rows[first:] if row["ratio"] == ratio]
            top = max(options, key=lambda r: r["tokens_per_s"])
            speedup = round(top["tokens_per_s"] / dense, 3)
            best[f"{ratio} {name}"] = {"arrangement": top["name"], "speedup": speedup}
    selection_cost()
    print(best)
    write_rows(sys.argv[1], rows, {"pool_bytes": POOL_BYTES, "best": best})


if __name__ == "__main__":
    main()
