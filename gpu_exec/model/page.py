"""Shapes of the paged memory of one full-attention layer, and where an element lies in a unit.

The kernels know head dimensions of 64, 128 and 256. Others are padded with zeros to the next, which
change neither a score nor a bound; larger ones are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_exec.kernels.layout import bound_order, kv_order
from gpu_exec.kernels.shape import HEAD_DIMS
from oasis_sim.errors import InputError

TILE_TOKENS = 16
KEY_TILE_BLOCKS = 16
LOCAL_SLOTS = 2
_MOST_GROUP = 16
_MOST_GROUP_WIDE = 8
"""With the widest head dimension: more columns than 16, of two rows, do not fit into registers."""


@dataclass(frozen=True)
class PageShape:
    """State the sizes of one layer for R rows; a pair is (row, KV head).

    ``slots`` of a pair hold complete blocks: the pool, then those that are always resident. Two
    more hold the block being filled and its successor.
    """

    rows: int
    heads: int
    group: int
    head_dim: int
    block_tokens: int
    blocks: int
    slots: int

    def __post_init__(self) -> None:
        """Refuse what the kernels cannot do, with the reason."""
        widest = HEAD_DIMS[-1]
        wide = self.head_dim > HEAD_DIMS[-2]
        most = _MOST_GROUP_WIDE if wide else _MOST_GROUP
        of_width = f" of {widest} dimensions" if wide else ""
        reasons = {
            f"head dimension {self.head_dim} is above {widest}": self.head_dim > widest,
            f"blocks of {self.block_tokens} tokens are no multiple of {TILE_TOKENS}": (
                self.block_tokens % TILE_TOKENS != 0
            ),
            f"{self.group} query heads{of_width} per KV head are more than {most}": (
                self.group > most
            ),
        }
        for reason, applies in reasons.items():
            if applies:
                raise InputError(f"{reason}: the GPU kernels cannot run it", fix="use --device cpu")

    @property
    def width(self) -> int:
        """Return the head dimension of the kernels, d: the model's or the next that they know."""
        return next(width for width in HEAD_DIMS if width >= self.head_dim)

    @property
    def pairs(self) -> int:
        """Return the number of (row, KV head) pairs."""
        return self.rows * self.heads

    @property
    def slots_per_pair(self) -> int:
        """Return the units of one pair."""
        return self.slots + LOCAL_SLOTS

    @property
    def unit_elements(self) -> int:
        """Return the 16-bit elements of one unit: keys and values of a block."""
        return self.block_tokens * 2 * self.width

    @property
    def unit_bytes(self) -> int:
        """Return the bytes of one unit."""
        return 2 * self.unit_elements

    @property
    def key_tile_elements(self) -> int:
        """Return the elements of one tile of extreme keys."""
        return KEY_TILE_BLOCKS * 2 * self.width

    @property
    def key_tiles(self) -> int:
        """Return the tiles of extreme keys of one pair."""
        return -(-self.blocks // KEY_TILE_BLOCKS)

    @property
    def score_stride(self) -> int:
        """Return the scores kept per pair."""
        return self.key_tiles * KEY_TILE_BLOCKS

    @cached_property
    def token_places(self) -> Any:
        """Return where a token's key, then value, lie in its unit, int64 [b, 2, d]."""
        order = kv_order(False, self.width).reshape(2, TILE_TOKENS, self.width).transpose(1, 0, 2)
        tile = np.arange(self.block_tokens // TILE_TOKENS)[:, None, None, None]
        places = order[None] + tile * (TILE_TOKENS * 2 * self.width)
        return places.reshape(self.block_tokens, 2, self.width)

    @cached_property
    def bound_places(self) -> Any:
        """Return where a block's largest, then smallest, key lies in its tile, int64 [16, 2 d]."""
        return bound_order(False, self.width).reshape(KEY_TILE_BLOCKS, 2 * self.width)
