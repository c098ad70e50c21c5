"""All-reduce of activations between the GPUs of one host: tensor parallelism needs two per layer.

    python benchmarks/gpu/collectives.py OUT.json

One process per GPU, NCCL, bf16 rows of Qwen3-8B's hidden size; a CUDA graph holds 72 all-reduces in
a chain (36 layers), so that no launch is timed. Each row is the median of 30 replays on GPU 0. The
fit is the simulator's: a fixed time, and 2 (n - 1) / n of the bytes over the link.
"""

from __future__ import annotations

import os
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from benchmarks.gpu.common import write_rows
from gpu_exec.fit import line_through

HIDDEN, CHAIN, REPEATS, WARM_UP = 4096, 72, 30, 20
ROWS = (2, 16, 32, 64, 128, 192, 256, 384)
COPY_BYTES = 1 << 30


def graph_us(rows: int) -> tuple[float, float]:
    """Return the median and the range in percent of one all-reduce of `rows` rows, in us."""
    values = torch.ones(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
    dist.all_reduce(values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(CHAIN):
            dist.all_reduce(values, op=dist.ReduceOp.AVG)
    for _ in range(WARM_UP):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    if not bool((values == dist.get_world_size()).all()):
        raise SystemExit("an all-reduce gave a wrong sum")
    times = [a.elapsed_time(b) * 1e3 / CHAIN for a, b in pairwise(events)]
    middle = statistics.median(times)
    return middle, 100.0 * (max(times) - min(times)) / middle


def peer_copy_gb_per_s() -> float:
    """Return the rate of one large copy between GPU 0 and 1."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda:0")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda:1")
    times = []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return COPY_BYTES / statistics.median(times) / 1e6


def work(rank: int, count: int, path: str) -> None:
    """Measure on one GPU; the first one writes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    found = [(rows, *graph_us(rows)) for rows in ROWS]
    dist.barrier()
    if rank == 0:
        write(path, count, found)
    dist.barrier()
    dist.destroy_process_group()


def write(path: str, count: int, found: list[tuple[int, float, float]]) -> None:
    """Write every row, the fit over them and its errors."""
    payload = [2 * (count - 1) / count * rows * HIDDEN * 2 for rows, _, _ in found]
    line = line_through(payload, [us for _, us, _ in found])
    rows: list[dict[str, Any]] = [
        {
            "rows": row,
            "bytes": row * HIDDEN * 2,
            "us": us,
            "spread_pct": spread,
            "fit_us": line.fixed + line.slope * size,
        }
        for (row, us, spread), size in zip(found, payload, strict=True)
    ]
    fit = {"fixed_us": line.fixed, "gb_per_s": 1e-3 / line.slope}
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    extra = {"gpus": count, "nccl": nccl, "fit": fit, "peer_copy_gb_per_s": peer_copy_gb_per_s()}
    write_rows(path, rows, extra)
    print(extra, *rows, sep="\n", flush=True)


def main() -> None:
    """Start one process per GPU."""
    count = torch.cuda.device_count()
    if count < 2:
        raise SystemExit(f"two GPUs are needed, {count} are here")
    torch.multiprocessing.spawn(work, args=(count, sys.argv[1]), nprocs=count)


if __name__ == "__main__":
    main()
