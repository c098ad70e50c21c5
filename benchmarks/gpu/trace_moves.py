"""Moves of a recorded or synthetic attention trace for the whole-step benchmarks.

    python benchmarks/gpu/trace_moves.py TRACE CAP OUT.npz

writes the moves of one request over one period of the trace's walk; ``rows_of`` spreads requests
over the period. The file needs no trace reader where the benchmark runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_exec.kernels.config import StepConfig, StepMoves
from gpu_exec.stamps import mix64


def save_period(trace_name: str, cap: int, path: str) -> None:
    """Simulate one request of Qwen3-8B (128 chosen blocks, one step ahead) over one period."""
    from oasis_sim.model import load_model
    from oasis_sim.residency.rule import ResidencyRule
    from oasis_sim.residency.walk import build_walk, walk_moves
    from oasis_sim.trace import load_trace

    model, trace = load_model("qwen3-8b"), load_trace(trace_name)
    rule = ResidencyRule(
        chosen_blocks=128,
        pool_blocks=128,
        cap_blocks=cap,
        sink_blocks=0,
        recent_blocks=1,
        block_tokens=16,
        on_demand=False,
    )
    table = build_walk(trace, rule, "draft", None, model)
    moves = walk_moves(trace, rule, "draft", None, model, table, range(table.period))
    parts = [moves.layer(s, i) for s in range(table.period) for i in range(model.layers)]
    head, block, slot = (np.concatenate([p[i] for p in parts]) for i in range(3))
    offset = np.concatenate([[0], np.cumsum([len(p[0]) for p in parts])])
    np.savez_compressed(
        path,
        offset=offset.reshape(-1),
        head=head,
        block=block,
        slot=slot,
        layers=model.layers,
        period=table.period,
        trace=str(trace.name),
        cap=cap,
    )
    per_head = len(head) / (table.period * model.layers * model.kv_heads)
    print(f"{trace.name}: {per_head:.2f} blocks per head, layer and step at cap {cap}")


def rows_of(config: StepConfig, path: str, steps: int, context: int) -> StepMoves:
    """Return the moves of all rows for ``steps`` steps, rows spread over the period."""
    data: Any = np.load(path, allow_pickle=False)
    layers, period, offset = int(data["layers"]), int(data["period"]), data["offset"]
    first = np.arange(config.batch) * period // config.batch
    row_parts, index_parts, layer_parts, bounds = [], [], [], [0]
    for step in range(steps):
        for layer in range(layers):
            at = ((first + step) % period) * layers + layer
            sizes = offset[at + 1] - offset[at]
            row = np.repeat(np.arange(config.batch), sizes)
            inside = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            row_parts.append(row)
            index_parts.append(offset[at][row] + inside)
            layer_parts.append(np.full(len(row), layer))
            bounds.append(bounds[-1] + len(row))
    row, index, layer = (np.concatenate(p) for p in (row_parts, index_parts, layer_parts))
    head, block = data["head"][index].astype(np.int64), data["block"][index].astype(np.int64)
    unit = ((row * layers + layer) * config.shape.kv_heads + head) * config.max_blocks + block
    phase = np.arange(config.batch) % config.block_tokens
    position = (context - steps - phase)[None, :] + np.arange(steps)[:, None]
    return StepMoves(
        offset=np.asarray(bounds, dtype=np.int64),
        row=row.astype(np.uint16),
        head=head.astype(np.uint8),
        slot=data["slot"][index],
        host_unit=(mix64(unit.astype(np.uint64)) % np.uint64(config.host_units)).astype(np.int64),
        context_tokens=position.astype(np.int32),
    )


if __name__ == "__main__":
    save_period(sys.argv[1], int(sys.argv[2]), sys.argv[3])
