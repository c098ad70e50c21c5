"""Time every kernel alone at the sizes of the reference model: bandwidths and latencies.

    python benchmarks/gpu/kernels.py OUT.json

Layers rotate, so no launch finds its data in the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import graph_ms, write_rows
from gpu_exec.kernels import library
from gpu_exec.kernels.abi import select_scratch_bytes
from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StageSwitches, StepConfig, StepShape, synthetic_moves
from gpu_exec.kernels.memory import StepMemory
from gpu_exec.kernels.movelist import DeviceMoves

LAYERS = 4
SHAPE = StepShape(LAYERS, 4096, 12288, 32, 8, 151_936)
BARE = StageSwitches(linear=False, draft=False)
rows: list[dict[str, Any]] = []


def report(name: str, ms: float, gb: float = 0.0, **extra: Any) -> None:
    """Keep and print one figure; ``gb`` is what one launch moves."""
    row = {"kernel": name, "us": round(1e3 * ms, 2), **extra}
    if gb:
        row["gb_per_s"] = round(gb / ms * 1e3, 1)
    rows.append(row)
    print(" ".join(f"{k}={v}" for k, v in row.items()), flush=True)


def setup(batch: int, context: int = 16384, **changes: Any) -> tuple[Any, Any, Any]:
    """Allocate one configuration with every row at the end of its context."""
    config = StepConfig(
        SHAPE, batch, context, stages=BARE, host_bytes=changes.pop("host_bytes", 1 << 30), **changes
    )
    memory = StepMemory(config)
    memory.position.copy_(context - 2 - torch.arange(batch) % 16)
    return config, memory, StepArguments(config, memory)


def attention(config: Any, arguments: Any, name: str, tries: list) -> None:
    """Time attention for several split counts and ring depths."""
    sparse = config.chosen_blocks * config.block_tokens + config.block_tokens // 2
    tokens = config.context_capacity - 10 if config.dense else sparse
    gb = config.pairs * tokens * 512 / 1e9
    for splits, stages in tries:
        args = [arguments.attention(layer, 0) for layer in range(LAYERS)]
        for a in args:
            a.splits, a.stages = splits or a.splits, stages

        def run(args: list = args) -> None:
            for a in args:
                library.launch("oasis_attention", a, config.pairs, 0, 0)

        ms = graph_ms(run) / LAYERS
        report(name, ms, gb, batch=config.batch, splits=args[0].splits, stages=stages)


def scan(config: Any, memory: Any, arguments: Any, tries: list) -> None:
    """Time the scan alone, with selection fused, and selection as a kernel of its own."""
    fp8 = int(config.key_format == "fp8")
    full = (int(memory.position.min()) + 1) // config.block_tokens
    keys = -(-full // 16) * 16  # they are read in tiles of 16 blocks
    gb = config.pairs * keys * (256 if fp8 else 512) / 1e9
    scratch = select_scratch_bytes(config.max_blocks, config.pool_blocks, config.chosen_blocks)
    for splits, stages, fused in tries:
        args = [arguments.scan(layer, fused) for layer in range(LAYERS)]
        select = [arguments.select(layer, 0) for layer in range(LAYERS)]
        for a in args:
            a.splits, a.stages = splits or a.splits, stages

        def run(args: list = args, select: list = select) -> None:
            memory.select_bounds[:, 1] = memory.select_bounds[:, 0]
            memory.qkv.add_(0.01)  # another query, so that the sets change
            for a, s in zip(args, select, strict=True):
                library.launch("oasis_scan", a, s, config.pairs, fp8, scratch, 0)

        ms = (graph_ms(run) - 0.010) / LAYERS
        name = f"scan{'+selection' if fused else ''} {config.key_format}"
        report(name, ms, gb, batch=config.batch, splits=args[0].splits, stages=stages)
    for threads in (128, 192, 256):
        drifting(config, memory, arguments, (scratch, threads))


def drifting(config: Any, memory: Any, arguments: Any, launch: tuple[int, int]) -> None:
    """Time selection on sets of which about an eighth changes from call to call."""
    position, step = library.pointer(memory.position), library.pointer(memory.step)
    base = torch.randn(config.pairs, config.max_blocks, device="cuda")
    variants = [base + 0.12 * torch.randn_like(base) for _ in range(8)]
    chosen = config.chosen_blocks
    order = [torch.topk(v[:, : config.max_blocks - 3], chosen).indices for v in variants]
    changed = (~(order[0][:, :, None] == order[1][:, None, :]).any(-1)).float().sum(1).mean()
    for layer in range(LAYERS):
        memory.slot_block[layer].copy_(order[2 * layer])

    def run() -> None:
        for turn in range(2):
            memory.select_bounds[:, 1] = memory.select_bounds[:, 0]
            for layer in range(LAYERS):
                select = arguments.select(layer, 0)
                select.scores = variants[2 * layer + 1 - turn].data_ptr()
                sizes = (config.pairs, config.max_blocks, *launch)
                library.launch("oasis_select", select, position, step, *sizes, None)

    report(
        "selection",
        (graph_ms(run) - 0.008) / LAYERS / 2,
        batch=config.batch,
        changed=round(float(changed), 1),
        threads=launch[1],
        cap=config.cap_blocks,
    )


def gather(config: Any, memory: Any, arguments: Any) -> None:
    """Time the gathers by CTAs, threads and form, on random host units."""
    per_head = 192 / config.block_tokens
    moves = DeviceMoves(config, synthetic_moves(config, 1, per_head, 16384))
    gb = moves.units(0) * config.unit_bytes / 1e9
    for ring, ctas, threads in (
        (0, 1, 512),
        (0, 2, 512),
        (0, 4, 256),
        (0, 4, 512),
        (6, 4, 32),
        (12, 1, 32),
        (12, 2, 32),
        (12, 4, 32),
    ):
        args = arguments.gather(moves, (0, LAYERS))

        def run(args: Any = args, form: tuple = (ctas, threads, ring, 180 << 10)) -> None:
            memory.cursor.zero_()
            library.launch("oasis_gather", args, *form)

        ms = graph_ms(run, repeats=3)
        report(
            "gather tma" if ring else "gather warp",
            ms,
            gb,
            ctas=ctas,
            threads=threads,
            ring=ring,
            unit=config.unit_bytes,
        )


def small(config: Any, memory: Any, arguments: Any) -> None:
    """Time the row-wise kernels."""
    import ctypes

    head_norm = torch.ones(2, 128, dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
    p = library.pointer

    def append() -> None:
        for layer in range(LAYERS):
            library.launch("oasis_append", arguments.append(layer, head_norm), 0)

    def norm() -> None:
        for _ in range(LAYERS):
            library.launch(
                "oasis_rms_norm",
                p(memory.x),
                p(weight),
                p(memory.normed),
                config.rows,
                4096,
                ctypes.c_float(1e-6),
                0,
            )

    def gate() -> None:
        for _ in range(LAYERS):
            library.launch(
                "oasis_silu_mul", p(memory.gate_up), p(memory.gated), config.rows, 12288, 0
            )

    def mirror() -> None:
        for layer in range(LAYERS):
            library.launch("oasis_mirror", arguments.mirror(layer), 4, None)

    for name, run in (
        ("append", append),
        ("rms_norm", norm),
        ("silu_mul", gate),
        ("mirror", mirror),
    ):
        report(name, graph_ms(run) / LAYERS, rows=config.rows)


def norm_by_place(memory: Any, rows_of_x: int) -> None:
    """Time the norm on six pairs of buffers, twice over, to see whether their place matters."""
    import ctypes

    weight = torch.ones(4096, dtype=torch.bfloat16, device="cuda")
    places = [(memory.x.clone(), memory.x.clone()) for _ in range(6)]
    p, eps = library.pointer, ctypes.c_float(1e-6)
    for turn in range(2):
        for place, (x, out) in enumerate(places):

            def run(x: Any = x, out: Any = out) -> None:
                for _ in range(LAYERS):
                    tensors = (p(x), p(weight), p(out))
                    library.launch("oasis_rms_norm", *tensors, rows_of_x, 4096, eps, 0)

            ms = graph_ms(run) / LAYERS
            report("rms_norm by place", ms, rows=rows_of_x, place=place, turn=turn)


def products(sizes: tuple[int, ...] = (4096, 8192, 16384)) -> None:
    """Time large square bf16 products of random matrices: what the tensor cores reach at most."""
    for size in sizes:
        a, b, out = torch.randn(3, size, size, device="cuda").to(torch.bfloat16)
        ms = graph_ms(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))
        report("product", ms, size=size, tflop_per_s=round(2 * size**3 / ms * 1e-9, 1))


def main() -> None:
    """Run every measurement and write the file."""
    products()
    data = torch.randint(0, 1 << 30, (1 << 30,), dtype=torch.int32, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    size, p = library.wide(4 << 30), library.pointer
    for ctas in (264, 528, 1056):
        args = (p(data), size, p(sink), ctas)
        ms = graph_ms(lambda args=args: library.launch("oasis_read", *args))
        report("read only", ms, (4 << 30) / 1e9, ctas=ctas)
    del data
    case = setup(128)
    attention(case[0], case[2], "attention", [(1, 3), (1, 2), (2, 3)])
    scan(*case, [(1, 2, False), (2, 2, False), (1, 2, True)])
    gather(*case)
    small(*case)
    norm_by_place(case[1], case[0].rows)
    case = setup(64)
    attention(case[0], case[2], "attention", [(1, 3), (2, 3)])
    scan(*case, [(1, 2, False), (2, 2, False), (1, 2, True)])
    case = setup(8)
    attention(case[0], case[2], "attention", [(4, 3), (8, 3)])
    scan(*case, [(0, 2, False), (0, 2, True)])
    case = setup(128, key_format="fp8")
    scan(*case, [(1, 3, False), (1, 2, False), (2, 2, False)])
    del case
    for tokens in (32, 64):
        blocks = 2048 // tokens
        case = setup(
            128, block_tokens=tokens, chosen_blocks=blocks, pool_blocks=blocks, cap_blocks=3
        )
        attention(case[0], case[2], f"attention, block {tokens}", 5 * [(1, 3)])
        scan(*case, [(1, 2, False)])
        gather(*case)
    case = setup(23, dense=True)
    attention(case[0], case[2], "dense attention", [(2, 2), (6, 3)])
    if len(sys.argv) > 1:
        write_rows(sys.argv[1], rows)


if __name__ == "__main__":
    main()
