"""Time whole steps: ablations, stages, and the arrangements of the transfer beside the GEMMs.

    python benchmarks/gpu/arrangements.py OUT.json [BATCH] [KEY_FORMAT]

Qwen3-8B, 16K context, block 16, 128 chosen blocks, random moves at the cap of the ratio. Each row
says in `changes` how it differs from the base: stages that are off, the library of products if it
is not PyTorch's choice, and settings of the step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.step import QWEN3_8B, DecodeStep, StageSwitches, StepConfig, synthetic_moves

CONTEXT = 16384
rows: list[dict[str, Any]] = []
WARP = {"transport": "warp_gather", "gather_threads": 512}
TMA = {"transport": "tma_gather"}
SHARED = {"gather_exclusive": False}
WINDOW, RESIDENT = {"arrangement": "window"}, {"arrangement": "resident"}
PERSISTENT = {"gemm": "persistent", "gather_ctas": 4}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "always, warp 4": {**WARP, "gather_ctas": 4},
    "always, tma 2": {**TMA, "gather_ctas": 2},
    "always, tma 8": TMA,
    "window, warp 8": {**WARP, **WINDOW},
    "window, tma 4": {**TMA, **WINDOW, "gather_ctas": 4},
    "window, tma 6": {**TMA, **WINDOW, "gather_ctas": 6},
    "window, tma 8": {**TMA, **WINDOW},
    "resident, warp 8": {**WARP, **RESIDENT},
    "resident, tma 8": {**TMA, **RESIDENT},
    "resident, tma 4, persistent GEMM": {**TMA, **RESIDENT, **PERSISTENT},
    "always, warp 4 x 256, persistent GEMM": {**PERSISTENT, "gather_threads": 256},
    "resident, warp 4 x 256, persistent GEMM": {**PERSISTENT, **RESIDENT, "gather_threads": 256},
}
STREAM: dict[str, Any] = {"prediction": "stream"}
CUBLASLT = {"blas": "cublaslt"}
PERSISTENT_ALONE = {"gemm": "persistent"}
QUIET = StageSwitches(transfer=False, draft=False)
WITHOUT_DRAFT: dict[str, dict[str, Any]] = {
    "no draft model": {},
    "no draft, persistent GEMM": PERSISTENT_ALONE,
    "no draft, scan on its own stream": STREAM,
    "no draft, cuBLASLt": CUBLASLT,
    "no draft, cuBLASLt, scan on its own stream": {**CUBLASLT, **STREAM},
    "no draft, persistent GEMM, scan on its own stream": {**PERSISTENT_ALONE, **STREAM},
    "no draft model, again": {},
}
BASE = {
    "transport": "warp_gather",
    "gather_ctas": 8,
    "arrangement": "always",
    "prediction": "inline",
    "selection": "separate",
    "gemm": "library",
    "gather_threads": 256,
    "gather_exclusive": True,
    "stages": StageSwitches(),
}


@contextmanager
def products_by(blas: str | None) -> Iterator[None]:
    """Let PyTorch multiply by another of NVIDIA's libraries inside."""
    before = torch.backends.cuda.preferred_blas_library()
    if blas:
        torch.backends.cuda.preferred_blas_library(blas)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def stated(changes: dict[str, Any]) -> dict[str, Any]:
    """Return changes as a row says them: what differs from the base."""
    said = {k: v for k, v in changes.items() if k != "stages" and v != BASE.get(k)}
    switches = asdict(changes.get("stages", BASE["stages"]))
    serial = {"serial": True} if switches.pop("serial") else {}
    off = [stage for stage, on in switches.items() if not on]
    return {**said, **serial, **({"off": off} if off else {})}


def measure(step: DecodeStep, name: str, ratio: float, timed: bool = False, **changes: Any) -> None:
    """Time one arrangement and keep the figures; failures are kept too."""
    started = time.perf_counter()
    said = stated(changes)
    try:
        blas = changes.pop("blas", None)
        step.reconfigure(**{**BASE, **changes})
        with products_by(blas):
            times = step.run(6, warmup=2)
        row = {
            "arrangement": name,
            "changes": said,
            "ratio": ratio,
            "batch": step.config.batch,
            "step_ms": round(times.median_ms, 3),
            "spread_pct": round(times.spread_pct, 2),
            "moved_mb": round(times.moved_bytes / 6e6, 1),
            "mirrored_mb": round(times.mirrored_bytes / 6e6, 1),
        }
        row["tokens_per_s"] = round(step.config.batch / times.median_ms * 1e3)
        if timed:
            inside = step.run(3, warmup=1, stages=True)
            row["stages_ms"] = {k: round(v, 3) for k, v in inside.stage_ms.items()}
        if times.moved_units:
            check = step.verify()
            row["verified"] = f"{check.checked_units - check.wrong_units}/{check.checked_units}"
    except Exception as error:  # noqa: BLE001 - one failed arrangement must not end the run
        failed = f"{type(error).__name__}: {error}"
        row = {"arrangement": name, "changes": said, "ratio": ratio, "failed": failed}
    row["wall_s"] = round(time.perf_counter() - started, 1)
    rows.append(row)
    print(row, flush=True)


def main() -> None:
    """Measure every arrangement at ratios 0, 0.02 and 0.05."""
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 128
    key_format = sys.argv[3] if len(sys.argv) > 3 else "bf16"
    started = time.perf_counter()
    config = StepConfig(QWEN3_8B, batch, CONTEXT, key_format=key_format)
    step = DecodeStep(config)
    print(f"allocated in {time.perf_counter() - started:.1f} s", flush=True)
    step.load(synthetic_moves(config, 4, 0.0, CONTEXT))
    measure(step, "ratio 0", 0.0, timed=True)
    for name, changes in WITHOUT_DRAFT.items():
        measure(step, name, 0.0, stages=QUIET, **changes)
    for name, off in (
        ("no draft, no selection", {"selection": False}),
        ("no draft, no scan", {"scan": False}),
        ("no draft, no scan, no attention", {"scan": False, "attention": False, "mirror": False}),
    ):
        measure(step, name, 0.0, stages=replace(QUIET, **off))
    measure(step, "serial", 0.0, stages=StageSwitches(serial=True, transfer=False))
    measure(step, "scan on its own stream", 0.0, **STREAM)
    measure(step, "fused selection", 0.0, selection="fused")
    for ratio, blocks in ((0.02, 2.0), (0.05, 6.0)):
        step.load(synthetic_moves(config, 4, blocks, CONTEXT))
        for name, changes in ARRANGEMENTS.items():
            measure(step, name, ratio, **changes)
        measure(
            step,
            "window, tma 8, stages timed",
            ratio,
            timed=True,
            **ARRANGEMENTS["window, tma 8"],
        )
    write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
