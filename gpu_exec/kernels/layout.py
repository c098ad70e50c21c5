"""Unit layout: the order of elements in KV units and min/max key tiles.

An operand tile of the tensor cores, 16 rows x 16 columns, is stored in register order: lane l of
a warp holds 16 contiguous bytes, rows l/4 and l/4 + 8 times columns 2(l % 4), +1, +8, +9 (PTX ISA,
mma.m16n8k16, operand A). A unit of b tokens is b/16 tiles, each K (rows = tokens) then V (rows =
dimensions); with d = 128 and 16 bits a tile has 8 KB. A key tile holds 16 blocks: rows = blocks,
columns = max[0:d], min[0:d].
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_exec.kernels.config import HEAD_DIM, TILE_TOKENS

Index = npt.NDArray[np.int64]


def operand_index(row: Index, col: Index) -> Index:
    """Return the element index of (row, column) inside one 16 x 16 operand tile."""
    lane = (row % 8) * 4 + (col % 8) // 2
    register = row // 8 + 2 * (col // 8)
    return np.asarray(lane * 8 + register * 2 + col % 2)


def _paired(index: Index) -> Index:
    """Return the place in a tile of 8-bit elements: a lane's 16 bytes serve two operand tiles."""
    operand, inside = index // 256, index % 256
    return (operand // 2) * 512 + (inside // 8) * 16 + (operand % 2) * 8 + inside % 8


@lru_cache(maxsize=6)
def kv_order(fp8: bool, head_dim: int = HEAD_DIM) -> Index:
    """Return, for flattened [2, 16, d] (K or V, token, dimension), the index in the tile."""
    token, d = np.meshgrid(np.arange(TILE_TOKENS), np.arange(head_dim), indexing="ij")
    key = (d // 16) * 256 + operand_index(token, d % 16)
    value = TILE_TOKENS * head_dim + (d // 16) * 256 + operand_index(d % 16, token)
    index = np.concatenate([key.ravel(), value.ravel()])
    return _paired(index) if fp8 else index


@lru_cache(maxsize=6)
def bound_order(fp8: bool, head_dim: int = HEAD_DIM) -> Index:
    """Return, for flattened [16, 2 d] (block, max then min), the element index in the key tile."""
    row, k = np.meshgrid(np.arange(16), np.arange(2 * head_dim), indexing="ij")
    index = np.asarray((k // 16) * 256 + operand_index(row, k % 16)).ravel()
    return _paired(index) if fp8 else index


def pack_units(keys: npt.NDArray[np.generic], values: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    """Return units [n, b * 2 d] from K and V [n, b, d] of any 8- or 16-bit type."""
    n, tokens, head_dim = keys.shape
    both = np.stack([keys, values], axis=1).reshape(n, 2, tokens // TILE_TOKENS, TILE_TOKENS, -1)
    flat = both.transpose(0, 2, 1, 3, 4).reshape(n * tokens // TILE_TOKENS, -1)
    packed = np.empty_like(flat)
    packed[:, kv_order(flat.dtype.itemsize == 1, head_dim)] = flat
    return packed.reshape(n, tokens * 2 * head_dim)


def unpack_units(
    units: npt.NDArray[np.generic], head_dim: int = HEAD_DIM
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return K and V [n, b, d] of units [n, b * 2 d]."""
    n, elements = units.shape
    tile = 2 * TILE_TOKENS * head_dim
    flat = units.reshape(n * (elements // tile), tile)
    flat = flat[:, kv_order(units.dtype.itemsize == 1, head_dim)]
    both = flat.reshape(n, -1, 2, TILE_TOKENS, head_dim).transpose(2, 0, 1, 3, 4)
    both = both.reshape(2, n, -1, head_dim)
    return both[0], both[1]


def pack_bounds(high: npt.NDArray[np.generic], low: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
    """Return key tiles [n, blocks/16, 32 d] from max and min [n, blocks, d]; blocks % 16 == 0."""
    n, blocks, head_dim = high.shape
    flat = np.concatenate([high, low], axis=-1).reshape(n * blocks // 16, 16 * 2 * head_dim)
    packed = np.empty_like(flat)
    packed[:, bound_order(flat.dtype.itemsize == 1, head_dim)] = flat
    return packed.reshape(n, blocks // 16, -1)


def unpack_bounds(tiles: npt.NDArray[np.generic]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return max and min [n, blocks, d] of key tiles [n, blocks/16, 32 d]."""
    n, count, elements = tiles.shape
    head_dim = elements // 32
    flat = tiles.reshape(n * count, elements)
    flat = flat[:, bound_order(tiles.dtype.itemsize == 1, head_dim)]
    both = flat.reshape(n, count * 16, 2 * head_dim)
    return both[..., :head_dim], both[..., head_dim:]
