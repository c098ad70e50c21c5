"""Configurations, synthetic moves, footprint and arrangement of a GPU step, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_exec.kernels.config import (
    TRANSPORTS,
    StageSwitches,
    StepConfig,
    StepMoves,
    synthetic_moves,
)
from gpu_exec.kernels.footprint import largest_batch, request_bytes
from gpu_exec.kernels.shape import QWEN3_8B
from gpu_exec.kernels.splits import choose_attention, choose_splits
from gpu_exec.kernels.tuning import best_arrangement
from oasis_sim.errors import InputError, UsageError

CONFIG = StepConfig(QWEN3_8B, batch=4, context_capacity=4096)
GIB = 1 << 30


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": replace(QWEN3_8B, head_dim=64)},
        {"shape": replace(QWEN3_8B, query_heads=24)},
        {"block_tokens": 24},
        {"batch": 0},
        {"pool_blocks": 64},
        {"pool_blocks": 2048},
        {"transport": "pigeon"},
        {"transport": "naive", "arrangement": "window"},
        {"transport": "copy_engine", "moves_from": "selection"},
        {"gather_ring": 2},
        {"copy_threads": 0},
        {"copies_ahead": 0},
    ],
)
def test_what_the_kernels_cannot_run_is_refused(changes: dict[str, Any]) -> None:
    """Every limit of the kernels is a usage error, before anything is allocated."""
    with pytest.raises(UsageError):
        replace(CONFIG, **changes)


def test_synthetic_moves_have_the_asked_rate_and_no_slot_twice() -> None:
    """2.5 blocks per head on average, distinct slots per pair, positions one apart."""
    moves = synthetic_moves(CONFIG, 3, 2.5, 4000)
    moves.check(CONFIG)
    per_head = len(moves.row) / (3 * 36 * CONFIG.pairs)
    assert per_head == pytest.approx(2.5, abs=0.05)
    first = slice(0, int(moves.offset[1]))
    keys = set(zip(moves.row[first], moves.head[first], moves.slot[first], strict=True))
    assert len(keys) == int(moves.offset[1])
    assert (np.diff(moves.context_tokens, axis=0) == 1).all()


@pytest.mark.parametrize(
    ("field", "value"), [("slot", 128), ("host_unit", -1), ("row", 4), ("head", 8)]
)
def test_moves_outside_the_pools_are_refused(field: str, value: int) -> None:
    """A move that would write or read outside is an input error that names the field."""
    moves = synthetic_moves(CONFIG, 1, 1.0, 4000)
    wrong = getattr(moves, field).astype(np.int64)
    wrong[5] = value
    with pytest.raises(InputError, match=field):
        replace(moves, **{field: wrong}).check(CONFIG)


def test_moves_beyond_the_context_are_refused() -> None:
    """A position above the capacity would index past the tables."""
    moves = synthetic_moves(CONFIG, 1, 1.0, 4000)
    with pytest.raises(InputError, match="context_tokens"):
        replace(moves, context_tokens=moves.context_tokens + 4096).check(CONFIG)
    with pytest.raises(InputError, match="move_offset"):
        StepMoves(**{**vars(moves), "offset": moves.offset[:-1]}).check(CONFIG)


def test_footprint_of_the_reference() -> None:
    """16K tokens: 2.42 GB dense; sparse 130 slots, 1,024 key blocks and 64 MiB of draft KV."""
    dense = StepConfig(QWEN3_8B, 1, 16382, dense=True)
    sparse = StepConfig(QWEN3_8B, 1, 16382)
    heads = 36 * 8
    assert request_bytes(dense) == heads * 1026 * 8192
    expected = heads * (130 * 8192 + 1024 * 512 + 512 * 4) + 8 * 1026 * 8192
    assert request_bytes(sparse) == expected
    assert largest_batch(dense, 52 * GIB).batch == 23
    assert largest_batch(sparse, 52 * GIB).batch == 106
    narrow = replace(sparse, key_format="fp8")
    assert largest_batch(narrow, 52 * GIB).batch == 124
    assert request_bytes(narrow) - request_bytes(replace(narrow, draft_kv="fp8")) == 8 * 1026 * 4096
    assert largest_batch(replace(narrow, draft_kv="fp8"), 52 * GIB).batch == 134


def test_the_host_drives_copies_only() -> None:
    """Gathers are part of the graph; copies are the host's, unless nothing moves."""
    driven = {name: replace(CONFIG, transport=name).host_driven for name in TRANSPORTS}
    assert [name for name, by_host in driven.items() if by_host] == ["copy_engine", "naive"]
    still = replace(CONFIG, transport="naive", stages=StageSwitches(transfer=False))
    assert not still.host_driven
    assert not replace(CONFIG, transport="naive", dense=True).host_driven


def test_arrangement_follows_the_bottleneck() -> None:
    """At ratio 0.02 the units fit beside attention, at 0.05 the link never rests."""
    config = replace(CONFIG, batch=128, context_capacity=16384)
    per_block = 128 * 8 * 36
    assert best_arrangement(config, 2 * per_block).arrangement == "window"
    assert best_arrangement(config, 6 * per_block).arrangement == "resident"
    copied = replace(config, transport="copy_engine")
    assert best_arrangement(copied, 2 * per_block) == copied


@pytest.mark.parametrize(
    ("pairs", "tiles", "expected"), [(1024, 129, (1, 3)), (184, 1024, (2, 2)), (3, 8, (1, 2))]
)
def test_splits_measured_best(pairs: int, tiles: int, expected: tuple[int, int]) -> None:
    """The rule picks the split and ring that measured fastest (docs/gpu-kernels.md)."""
    assert choose_attention(pairs, tiles) == expected


def test_short_rows_are_split_as_measured() -> None:
    """For every batch and budget of the raw file the pick is within 5 % of the fastest form."""
    path = Path(__file__).parents[2] / "validation" / "kernels-attention-h200.json"
    times: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for row in json.loads(path.read_text())["rows"]:
        forms = times.setdefault((row["batch"], row["budget"]), {})
        forms[row["splits"], row["stages"]] = row["us"]
    assert 30 <= len(times)
    for (batch, budget), forms in times.items():
        picked = choose_attention(8 * batch, budget // 16 + 1)
        assert forms[picked] <= 1.05 * min(forms.values()), (batch, budget, picked, forms)


@pytest.mark.parametrize(("pairs", "tiles"), [(1, 1), (1, 10_000), (5000, 1), (264, 8)])
def test_splits_stay_within_their_limits(pairs: int, tiles: int) -> None:
    """At least one CTA per pair, at most 64, none with fewer than eight tiles."""
    splits = choose_splits(pairs, tiles, 264)
    assert 1 <= splits <= 64
    assert splits == 1 or tiles // splits >= 8
