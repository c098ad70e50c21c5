"""The named groups of arrays that the compiled core works on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MASS_UNITS = 2.0**40
"""Mass is summed in integers of 2**-40, so that no sum depends on its order."""


OWN, LAYER, LAYERS = range(3)
"""Who shares caps: nobody, the heads of a layer, those of all layers."""


class Trace(NamedTuple):
    """Hold the arrays read: orders uint16[T, L, H, M], mass uint8[T, L, H, NB] (NB may be 0)."""

    use: NDArray[np.uint16]
    target: NDArray[np.uint16]
    mass: NDArray[np.uint8]
    mass_units: NDArray[np.int64]  # [256]


class Path(NamedTuple):
    """Hold the fields of ``StepPath``."""

    use_row: NDArray[np.int64]
    use_position: NDArray[np.int64]
    target_row: NDArray[np.int64]
    target_position: NDArray[np.int64]
    first: int


class Sizes(NamedTuple):
    """Hold the fields of ``ResidencyRule``, and the number of block ids."""

    chosen: int
    pool: int
    cap: int
    depth: int
    sink: int
    recent: int
    block_tokens: int
    blocks: int


class Ways(NamedTuple):
    """Say who shares caps, and how victims and worthwhile fetches are known."""

    sharing: int
    belady: bool
    least_attended: bool
    gainful: bool


class Counts(NamedTuple):
    """Hold the arrays written, [S, L, H]."""

    needed: NDArray[np.int32]
    admitted: NDArray[np.int32]
    overlap: NDArray[np.int32]
    mass: NDArray[np.int64]


class MoveArrays(NamedTuple):
    """Hold the moves written; ``offset`` of length 0 writes none."""

    offset: NDArray[np.int64]
    block: NDArray[np.uint16]
    slot: NDArray[np.uint16]
    start: NDArray[np.uint16]


class Head(NamedTuple):
    """Hold the state of one head: where each block is, and who would be evicted next."""

    slot_of: NDArray[np.int32]  # [blocks] slot, or -1
    target_step: NDArray[np.int32]  # [blocks] last step that had the block in its target
    use_step: NDArray[np.int32]  # [blocks] last step whose true query chose the block
    chosen: NDArray[np.uint16]  # [k] scratch: the target or the true set
    missing: NDArray[np.uint16]  # [k] target blocks that are not resident, in its order
    inside: NDArray[np.uint16]  # [k] resident blocks of the target
    outside: NDArray[np.uint16]  # [P] other resident blocks, next victim first


class Attended(NamedTuple):
    """Say what attention reads: `head.inside[:inside]` and `head.outside[begin:end]`."""

    inside: int
    begin: int
    end: int
