"""Time each neighbour beside each form of the gather: slowdown and the gather's own rate.

python benchmarks/gpu/beside.py OUT.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import write_rows
from gpu_exec.kernels import library
from gpu_exec.kernels.abi import select_scratch_bytes
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StageSwitches, StepConfig, StepShape, synthetic_moves
from gpu_exec.kernels.gemm import persistent_gemm
from gpu_exec.kernels.linear import LayerWeights, library_gemm
from gpu_exec.kernels.memory import StepMemory
from gpu_exec.kernels.movelist import DeviceMoves

LAYERS = 4
SHAPE = StepShape(LAYERS, 4096, 12288, 32, 8, 151_936)
RESERVE = 180 << 10
FORMS = {
    "none": None,
    **{f"warp {n} x 512": (n, 512, 0, RESERVE) for n in (2, 4, 6, 8, 12, 16)},
    **{f"tma {n} ring 12": (n, 32, 12, RESERVE) for n in (2, 4, 6, 8, 12)},
    "warp 8 x 512 shared": (8, 512, 0, 0),
    "warp 4 x 256": (4, 256, 0, RESERVE),
}


def neighbours(config: Any, memory: Any, arguments: Any) -> dict[str, Callable[[], None]]:
    """Return what runs beside: each about 10 ms."""
    weights = LayerWeights(config)
    scratch = select_scratch_bytes(config.max_blocks, config.pool_blocks, config.chosen_blocks)

    def attention() -> None:
        for i in range(40):
            library.launch(
                "oasis_attention", arguments.attention(i % LAYERS, 0), config.pairs, 0, 0
            )

    def scan() -> None:
        for i in range(80):
            args, select = arguments.scan(i % LAYERS, False), arguments.select(i % LAYERS, 0)
            library.launch("oasis_scan", args, select, config.pairs, 0, scratch, 0)

    def linear(gemm: Any) -> Callable[[], None]:
        def run() -> None:
            for i in range(60):
                layer, m = i % LAYERS, memory
                gemm(m.normed, weights.qkv[layer], m.qkv, None)
                gemm(m.attended, weights.o[layer], m.x, m.x)
                gemm(m.normed, weights.gate_up[layer], m.gate_up, None)
                gemm(m.gated, weights.down[layer], m.x, m.x)

        return run

    return {
        "attention": attention,
        "scan": scan,
        "linear library": linear(library_gemm),
        "linear persistent 128": linear(persistent_gemm),
    }


def main() -> None:
    """Measure every pair and write the file."""
    config = StepConfig(SHAPE, 128, 16384, host_bytes=4 << 30, stages=StageSwitches(draft=False))
    memory = StepMemory(config)
    memory.position.copy_(16382 - torch.arange(128) % 16)
    arguments = StepArguments(config, memory)
    moves = DeviceMoves(config, synthetic_moves(config, 1, 96.0, 16384))
    gather_args = arguments.gather(moves, (0, LAYERS), stop_at=1)
    side, main_stream = torch.cuda.Stream(priority=-3), torch.cuda.Stream(priority=-1)
    rows: list[dict[str, Any]] = []
    for name, launches in neighbours(config, memory, arguments).items():
        launches()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main_stream):
            launches()
        alone = 0.0
        for form, launch in FORMS.items():
            times, rates = [], []
            for _ in range(4):
                memory.cursor.zero_()
                memory.stop.fill_(-1)
                memory.moved.zero_()
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                if launch:
                    with torch.cuda.stream(side):
                        library.launch("oasis_gather", gather_args, *launch)
                with torch.cuda.stream(main_stream):
                    first.record()
                    graph.replay()
                    last.record()
                    library.launch("oasis_set_flag", library.pointer(memory.stop), 1)
                torch.cuda.synchronize()
                times.append(first.elapsed_time(last))
                rates.append(int(memory.moved.item()) * 8192 / times[-1] / 1e6)
            ms, rate = sorted(times)[1], sorted(rates)[-2]
            alone = ms if launch is None else alone
            row = {
                "neighbour": name,
                "gather": form,
                "ms": round(ms, 3),
                "slowdown": round(ms / alone, 3),
                "gather_gb_per_s": round(rate, 1),
            }
            rows.append(row)
            print(row, flush=True)
    write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
