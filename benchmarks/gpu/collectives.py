"""All-reduces between the GPUs of one host, as a captured step runs them, by NCCL's protocol.

    PYTHONPATH=. python benchmarks/gpu/collectives.py OUT.json

Tensor parallelism needs two per layer. One process with a communicator and a thread per GPU, bf16
rows of Qwen3-8B's hidden size. Sums of known patterns are checked; then a CUDA graph holds 72
all-reduces in a chain (36 layers), so that no launch is timed. A row is the median of 30 replays,
of the slower GPU. The fit is the simulator's: a fixed time, and 2 (n - 1) / n of the bytes over
the link.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.gpu.common import write_rows
from gpu_exec.fit import line_through
from gpu_exec.kernels.rank_sum import RankSum
from gpu_exec.nccl import SETTINGS, NcclGroup

HIDDEN, CHAIN, REPEATS, WARM_UP = 4096, 72, 30, 20
ROWS = (2, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512)
CHOICE = "LL,LL128,Simple"
"""NCCL chooses."""
PROTOCOLS = (SETTINGS["NCCL_PROTO"], CHOICE, "LL128", "Simple")
COPY_BYTES = 1 << 30


class Joined:
    """The GPUs of this host, joined with one of NCCL's protocols; a thread drives each."""

    def __init__(self, protocol: str) -> None:
        os.environ["NCCL_PROTO"] = protocol
        self.count = torch.cuda.device_count()
        self.group = NcclGroup(self.count)
        self._threads = ThreadPoolExecutor(max_workers=self.count)

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """Do `work(device)` for every GPU at once."""

        def on_device(device: int) -> Any:
            with torch.cuda.device(device):
                return work(device)

        futures = [self._threads.submit(on_device, device) for device in range(self.count)]
        return [future.result() for future in futures]

    def close(self) -> None:
        """Leave the group; no graph may use it any more."""
        self._threads.shutdown()
        self.group.close()

    def check(self, values: list[Any]) -> None:
        """Sum known patterns once; end the program when an element is wrong."""

        def wrong(device: int) -> int:
            x = values[device]
            sums = RankSum(self.group, device, x.numel(), 1, f"cuda:{device}")
            sums.checked(x, 0)
            checked, bad = sums.counts()
            return bad + abs(checked - x.numel())

        if found := sum(self.each(wrong)):
            raise SystemExit(f"an all-reduce gave {found} wrong elements")

    def capture(self, device: int, values: list[Any]) -> Any:
        """Return a graph of all-reduces in a chain; one GPU at a time captures."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            values[device].zero_()
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for _ in range(CHAIN):
                    self.group.all_reduce(device, values[device])
        return graph


def all_reduce_us(joined: Joined, rows: int) -> tuple[float, float]:
    """Return the median and the range in percent of one all-reduce of `rows` rows, in us."""
    values = [
        torch.zeros(rows, HIDDEN, dtype=torch.bfloat16, device=f"cuda:{device}")
        for device in range(joined.count)
    ]
    joined.check(values)
    graphs = [joined.capture(device, values) for device in range(joined.count)]

    def times(device: int) -> list[float]:
        for _ in range(WARM_UP):
            graphs[device].replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
        events[0].record()
        for event in events[1:]:
            graphs[device].replay()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e3 / CHAIN for a, b in pairwise(events)]

    slower = max(joined.each(times), key=statistics.median)
    graphs.clear()
    middle = statistics.median(slower)
    return middle, 100.0 * (max(slower) - min(slower)) / middle


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


def fitted(count: int, found: list[tuple[int, float, float]]) -> tuple[dict[str, float], list[Any]]:
    """Return the line through one protocol's times, and every row with its fitted time."""
    size = [row * HIDDEN * 2 for row, _, _ in found]
    payload = [2 * (count - 1) / count * each for each in size]
    line = line_through(payload, [us for _, us, _ in found])
    rows = [
        {"rows": row, "bytes": each, "us": us, "spread_pct": spread,
         "fit_us": line.fixed + line.slope * sent}
        for (row, us, spread), each, sent in zip(found, size, payload, strict=True)
    ]  # fmt: skip
    errors = [100.0 * abs(row["fit_us"] / row["us"] - 1.0) for row in rows]
    fit = {"fixed_us": line.fixed, "gb_per_s": 1e-3 / line.slope, "largest_error_pct": max(errors)}
    return fit, rows


def main(path: str) -> None:
    """Measure with every protocol; write and print what was found so far after each."""
    if torch.cuda.device_count() < 2:
        raise SystemExit("two GPUs are needed")
    extra: dict[str, Any] = {"peer_copy_gb_per_s": peer_copy_gb_per_s(), "fits": {}}
    rows: list[dict[str, Any]] = []
    for protocol in PROTOCOLS:
        joined = Joined(protocol)
        extra |= {"gpus": joined.count, "nccl": joined.group.version}
        found = [(each, *all_reduce_us(joined, each)) for each in ROWS]
        extra["fits"][protocol], more = fitted(joined.count, found)
        rows += [{"protocol": protocol, **row} for row in more]
        joined.close()
        write_rows(path, rows, extra)
        print(protocol, extra["fits"][protocol], *more, sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
