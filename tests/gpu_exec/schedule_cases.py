"""Small synthetic schedules for the tests: random moves that obey every rule of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oasis_sim.engine.schedule import Schedule
from oasis_sim.report.directory import SCHEDULE_NAME, write_run


@dataclass(frozen=True)
class Case:
    """Say how large a synthetic schedule is and which seed draws it."""

    seed: int = 0
    steps: int = 3
    layers: int = 2
    kv_heads: int = 2
    rows: int = 3
    dense_rows: int = 0
    host_blocks: int = 24
    pool_blocks: int = 6
    cap_blocks: int = 2
    block_tokens: int = 16
    head_dim: int = 8
    transport: str = "sm_gather"


def make_meta(case: Case) -> dict[str, Any]:
    """Return the header of the case's schedule."""
    return {
        "model": {
            "name": "synthetic-test-model",
            "layers": case.layers,
            "hidden": 4 * case.head_dim,
            "intermediate": 8 * case.head_dim,
            "query_heads": 2 * case.kv_heads,
            "kv_heads": case.kv_heads,
            "head_dim": case.head_dim,
            "vocab": 64,
            "bytes_per_weight": 2,
            "bytes_per_kv": 2,
        },
        "scheme": {
            "name": "synthetic",
            "chosen_blocks": case.pool_blocks,
            "pool_blocks": case.pool_blocks,
            "cap_blocks": case.cap_blocks,
            "block_tokens": case.block_tokens,
            "recent_blocks": 1,
            "sink_blocks": 0,
        },
        "profile": "synthetic",
        "engine": "roofline",
        "transport": case.transport,
        "layers": case.layers,
        "kv_heads": case.kv_heads,
        "host_blocks": case.host_blocks,
        "stages": ["qkv", "attention", "transfer"],
    }


def make_arrays(case: Case) -> dict[str, Any]:
    """Return the arrays of the case's schedule, drawn from its seed."""
    random = np.random.default_rng(case.seed)
    moves: list[tuple[int, int, int, int]] = []
    offset = [0]
    for _ in range(case.steps * case.layers):
        for row in range(case.rows):
            for head in range(case.kv_heads):
                count = int(random.integers(0, case.cap_blocks + 1))
                blocks = random.permutation(case.host_blocks)[:count]
                slots = random.permutation(case.pool_blocks)[:count]
                moves += [(row, head, int(b), int(s)) for b, s in zip(blocks, slots, strict=False)]
        offset.append(len(moves))
    table = np.array(moves, dtype=np.int64).reshape(-1, 4)
    used = case.rows + case.dense_rows
    request = np.full((case.steps, used + 1), -1, dtype=np.int64)
    request[:, :used] = np.arange(used) + 100
    context = np.zeros((case.steps, used + 1), dtype=np.int32)
    context[:, :used] = case.host_blocks * case.block_tokens - case.steps
    context[:, :used] += np.arange(case.steps, dtype=np.int32)[:, None]
    return {
        "step": np.arange(case.steps) + 40,
        "rows": np.full(case.steps, case.rows),
        "dense_rows": np.full(case.steps, case.dense_rows),
        "row_request": request,
        "context_tokens": context,
        "move_offset": np.array(offset),
        "move_row": table[:, 0],
        "move_head": table[:, 1],
        "move_block": table[:, 2],
        "move_slot": table[:, 3],
        "sim_step_ps": np.full(case.steps, 10**9),
        "sim_stage_ps": np.full((case.steps, 3), 10**8),
    }


def make_schedule(case: Case) -> Schedule:
    """Return the checked schedule of a case."""
    return Schedule.from_arrays(make_meta(case), **make_arrays(case))


def save_run(place: Path, **others: bytes) -> None:
    """Write a run directory that holds a schedule, and `others` by name, with their manifest."""
    write_run(place, {SCHEDULE_NAME: make_schedule(Case()).to_bytes(), **others}, "")
