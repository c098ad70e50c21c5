"""Unit layout: the order of elements in KV units and min/max key tiles.

An operand tile of the tensor cores, 16 rows x 16 columns, is stored in register order: lane l of
a warp holds 16 contiguous bytes, rows l/4 and l/4 + 8 times columns 2(l % 4), +1, +8, +9 (PTX ISA,
mma.m16n8k16, operand A). A unit of b tokens is b/16 tiles of 8 KB, each K (rows = tokens) then V
(rows = dimensions). A key tile holds 16 blocks: rows = blocks, columns = max[0:128], min[0:128].
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_exec.kernels.config import HEAD_DIM, TILE_TOKENS

Index = npt.NDArray[np.int64]

TILE_ELEMENTS = 2 * TILE_TOKENS * HEAD_DIM


def operand_index(row: Index, col: Index) -> Index:
    """Return the element index of (row, column) inside one 16 x 16 operand tile."""
    lane = (row % 8) * 4 + (col % 8) // 2
    register = row // 8 + 2 * (col // 8)
    return np.asarray(lane * 8 + register * 2 + col % 2)


def _paired(index: Index) -> Index:
    """Return the place in a tile of 8-bit elements: a lane's 16 bytes serve two operand tiles."""
    operand, inside = index // 256, index % 256
    return (operand // 2) * 512 + (inside // 8) * 16 + (operand % 2) * 8 + inside % 8


@lru_cache(maxsize=2)
def kv_order(fp8: bool) -> Index:
    """Return, for flattened [2, 16, 128] (K or V, token, dimension), the index in the tile."""
    token, d = np.meshgrid(np.arange(TILE_TOKENS), np.arange(HEAD_DIM), indexing="ij")
    key = (d // 16) * 256 + operand_index(token, d % 16)
    value = TILE_ELEMENTS // 2 + (d // 16) * 256 + operand_index(d % 16, token)
    index = np.concatenate([key.ravel(), value.ravel()])
    return _paired(index) if fp8 else index


@lru_cache(maxsize=2)
def bound_order(fp8: bool) -> Index:
    """Return, for flattened [16, 256] (block, max then min), the element index in the key tile."""
    row, k = np.meshgrid(np.arange(16), np.arange(2 * HEAD_DIM), indexing="ij")
    index = np.asarray((k // 16) * 256 + operand_index(row, k % 16)).ravel()
    return _paired(index) if fp8 else index


def pack_units(keys: npt.NDArray[np.generic], values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    """Return units [n, b * 256] from K and V [n, b, 128] of any 8- or 16-bit type."""
    n, tokens, _ = keys.shape
    both = np.stack([keys, values], axis=1).reshape(n, 2, tokens // TILE_TOKENS, TILE_TOKENS, -1)
    flat = both.transpose(0, 2, 1, 3, 4).reshape(n * tokens // TILE_TOKENS, TILE_ELEMENTS)
    packed = np.empty_like(flat)
    packed[:, kv_order(flat.dtype.itemsize == 1)] = flat
    return packed.reshape(n, tokens * 2 * HEAD_DIM)


def unpack_units(units: npt.NDArray[np.generic]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return K and V [n, b, 128] of units [n, b * 256]."""
    n, elements = units.shape
    tiles = elements // TILE_ELEMENTS
    flat = units.reshape(n * tiles, TILE_ELEMENTS)[:, kv_order(units.dtype.itemsize == 1)]
    both = flat.reshape(n, tiles, 2, TILE_TOKENS, HEAD_DIM).transpose(2, 0, 1, 3, 4)
    both = both.reshape(2, n, tiles * TILE_TOKENS, HEAD_DIM)
    return both[0], both[1]


def pack_bounds(high: npt.NDArray[np.generic], low: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    """Return key tiles [n, blocks/16, 4096] from max and min [n, blocks, 128]; blocks % 16 == 0."""
    n, blocks, _ = high.shape
    flat = np.concatenate([high, low], axis=-1).reshape(n * blocks // 16, 16 * 2 * HEAD_DIM)
    packed = np.empty_like(flat)
    packed[:, bound_order(flat.dtype.itemsize == 1)] = flat
    return packed.reshape(n, blocks // 16, -1)


def unpack_bounds(tiles: npt.NDArray[np.generic]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return max and min [n, blocks, 128] of key tiles [n, blocks/16, 4096]."""
    n, count, elements = tiles.shape
    flat = tiles.reshape(n * count, elements)[:, bound_order(tiles.dtype.itemsize == 1)]
    both = flat.reshape(n, count * 16, 2 * HEAD_DIM)
    return both[..., :HEAD_DIM], both[..., HEAD_DIM:]
