"""The unit layout is what the tensor cores want: attention and scan, lane by lane, on the CPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.kernels.layout import (
    bound_order,
    kv_order,
    pack_bounds,
    pack_units,
    unpack_bounds,
    unpack_units,
)
from gpu_exec.kernels.shape import HEAD_DIMS
from tests.gpu_exec.kernel_oracles import attention_oracle, error_of, scan_oracle
from tests.gpu_exec.tensor_core import LANE, mma, operand_b, transpose8

DIMS = st.sampled_from(HEAD_DIMS)


def registers(tile: np.ndarray, step: int) -> np.ndarray:
    """Return what each lane loads for one operand, [32, 8] elements: 16 bytes, or 8 of 16."""
    if tile.dtype.itemsize == 1:
        return tile.reshape(-1, 32, 2, 8)[step // 2, :, step % 2].astype(np.float64)
    return tile.reshape(-1, 32, 8)[step].astype(np.float64)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    columns=st.integers(1, 8),
    seen=st.integers(1, 16),
    narrow=st.booleans(),
    dim=DIMS,
)
def test_attention_tile_by_lanes(
    seed: int, columns: int, seen: int, narrow: bool, dim: int
) -> None:
    """One tile as the kernel does it: S = K Q, softmax over tokens, transpose, O = V P."""
    rng = np.random.default_rng(seed)
    keys, values = (rng.normal(size=(1, 16, dim)) for _ in range(2))
    if narrow:
        keys, values = (np.round(2 * x).astype(np.int8) for x in (keys, values))
    queries = rng.normal(size=(columns, dim))
    tile = pack_units(keys, values)[0]
    s = np.zeros((32, 4))
    for step in range(dim // 16):
        s = mma(s, registers(tile, step), operand_b(queries, step))
    token = LANE[:, None] // 4 + 8 * (np.arange(4)[None, :] // 2)
    s = np.where(token < seen, s * dim**-0.5, -np.inf)
    p = np.exp(s)
    totals = np.zeros(8)
    for i in range(4):
        np.add.at(totals, 2 * (LANE % 4) + i % 2, p[:, i])
    b = np.concatenate([transpose8(p[:, :2]), transpose8(p[:, 2:])], axis=1)
    found = np.zeros((8, dim))
    for step in range(dim // 16):
        o = mma(np.zeros((32, 4)), registers(tile, dim // 16 + step), b)
        for i in range(4):
            d = 16 * step + LANE // 4 + 8 * (i // 2)
            found[2 * (LANE % 4) + i % 2, d] = o[:, i]
    for column in range(columns):
        expected = attention_oracle(queries[column], keys[0, :seen], values[0, :seen], dim**-0.5)
        assert error_of(found[column] / totals[column], expected) < 1e-9


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), group=st.sampled_from([1, 2, 4, 8]), dim=DIMS)
def test_scan_tile_by_lanes(seed: int, group: int, dim: int) -> None:
    """One key tile: [q+, q-] against [max, min] on the tensor cores, best of the group."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 1, 16, dim))
    high, low = np.maximum(a, b), np.minimum(a, b)
    queries = rng.normal(size=(group, dim))
    split = np.concatenate([np.maximum(queries, 0), np.minimum(queries, 0)], axis=1)
    columns = split[np.arange(8) % group]
    tile = pack_bounds(high, low)[0, 0]
    c = np.zeros((32, 4))
    for step in range(dim // 8):
        c = mma(c, registers(tile, step), operand_b(columns, step))
    best = np.full(16, -np.inf)
    for i in range(4):
        np.maximum.at(best, LANE // 4 + 8 * (i // 2), c[:, i])
    assert error_of(best, scan_oracle(queries, high[0], low[0])) < 1e-9


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("tokens", [16, 32, 64])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_units_round_trip(tokens: int, kind: type, dim: int) -> None:
    """Packing and unpacking give the same K and V, and tiles follow one another."""
    rng = np.random.default_rng(tokens)
    keys, values = rng.integers(0, np.iinfo(kind).max + 1, (2, 3, tokens, dim)).astype(kind)
    units = pack_units(keys, values)
    again = unpack_units(units, dim)
    assert np.array_equal(keys, again[0])
    assert np.array_equal(values, again[1])
    alone = pack_units(keys[:, 16:32], values[:, 16:32]) if tokens > 16 else units
    assert np.array_equal(units[:, -(tokens - 16) * 2 * dim or None :][:, : 32 * dim], alone)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_bounds_round_trip(kind: type, dim: int) -> None:
    """Packing and unpacking give the same max and min, in bf16 and in fp8 tiles."""
    rng = np.random.default_rng(1)
    high, low = rng.integers(0, 256, (2, 2, 32, dim)).astype(kind)
    again = unpack_bounds(pack_bounds(high, low))
    assert np.array_equal(high, again[0])
    assert np.array_equal(low, again[1])


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_the_kernels_use_the_same_order(dim: int) -> None:
    """The C++ index functions agree with the Python tables, element by element."""
    path = build_selection_for_cpu()
    if path is None:
        pytest.skip("no C++ compiler to build the layout header")
    index = ctypes.CDLL(str(path)).oasis_layout
    keys = [index(0, token, d) for token in range(16) for d in range(dim)]
    values = [16 * dim + index(1, token, d) for token in range(16) for d in range(dim)]
    assert [*keys, *values] == kv_order(False, dim).tolist()
    for kind, fp8 in ((2, False), (3, True)):
        found = [index(kind, r, k) // (1 if fp8 else 2) for r in range(16) for k in range(2 * dim)]
        assert found == bound_order(fp8, dim).tolist()
