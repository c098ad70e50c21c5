"""What residency takes and returns: the rule, the path through a trace, and the log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError


@dataclass(frozen=True)
class ResidencyRule:
    """State how many blocks a head may hold, choose and admit. Counts are blocks per KV head.

    ``chosen_blocks`` (k) may be selected per step; ``pool_blocks`` (P >= k) fit in HBM;
    ``cap_blocks`` (C) may be admitted per step, P or more meaning no cap, and only those among the
    best ``depth_blocks`` of the selection (None: all of it). The first
    ``sink_blocks`` and the newest ``recent_blocks`` (the one being filled included) are always
    resident, besides the pool. ``on_demand`` selects with the current query itself instead of a
    prediction made one step ahead. With ``cap_over_heads`` the heads of a layer share their caps:
    C times their number may be admitted among them, one block each in turn while they miss any,
    lower heads first; within a head better ranks come first. With ``cap_over_layers`` the layers
    share them too: what all may admit is split over layers in proportion to the misses of the step
    before (largest remainders up, lower layers first; evenly when nothing missed), then over heads.

    The victim is the block that was named by a target longest ago; with ``belady`` the one that a
    target names again last (or never; ties to the lower id); with ``least_attended`` the one that
    attention gave the least share of what it read (``observed.py``). With ``gainful`` a head then
    admits only as long as the next victim held no more than its fetched blocks did when they were
    first read.
    """

    chosen_blocks: int
    pool_blocks: int
    cap_blocks: int
    sink_blocks: int = 0
    recent_blocks: int = 1
    block_tokens: int = 16
    on_demand: bool = False
    cap_over_heads: bool = False
    cap_over_layers: bool = False
    belady: bool = False
    least_attended: bool = False
    gainful: bool = False
    depth_blocks: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other."""
        least = {
            "chosen_blocks": 1,
            "pool_blocks": self.chosen_blocks,
            "cap_blocks": 0,
            "sink_blocks": 0,
            "recent_blocks": 0,
            "block_tokens": 1,
        }
        if self.depth_blocks is not None:
            least["depth_blocks"] = 0
        if self.belady and self.least_attended:
            raise InputError("contradicts belady; choose one", field="least_attended")
        if self.gainful and not self.least_attended:
            raise InputError("needs least_attended", field="gainful")
        for field, minimum in least.items():
            value = getattr(self, field)
            if value < minimum:
                raise InputError(f"{value} is too small", field=field, fix=f"use {minimum} or more")

    @property
    def depth(self) -> int:
        """Return how many of the best blocks of a selection may be admitted when they miss."""
        if self.depth_blocks is None:
            return self.chosen_blocks
        return min(self.depth_blocks, self.chosen_blocks)

    def last_candidate(self, position: int) -> int:
        """Return the newest block that selection may choose at a token position."""
        return position // self.block_tokens - self.recent_blocks


@dataclass(frozen=True, eq=False)
class StepPath:
    """Say which rows of a trace each simulated step reads, all int64[S].

    Step s has the true order ``use_order[use_row[s]]`` at token position ``use_position[s]``,
    and the target made for it is ``target_order[target_row[s]]``, with the candidates of
    ``target_position[s]``. Step 0 starts from the true set and has no target. Steps before
    ``first`` are simulated but not reported.
    """

    use_row: NDArray[np.int64]
    use_position: NDArray[np.int64]
    target_row: NDArray[np.int64]
    target_position: NDArray[np.int64]
    first: int = 0

    @property
    def steps(self) -> int:
        """Return S, the steps simulated."""
        return len(self.use_row)

    @property
    def reported(self) -> int:
        """Return the steps that the log holds."""
        return self.steps - self.first


@dataclass(frozen=True, eq=False)
class Moves:
    """List every admitted block with its slot, ordered by step, layer, head, admission.

    ``offset`` int64[S*L*H+1] bounds the moves of each (step, layer, head) in ``block`` and
    ``slot`` (uint16[N]). ``start`` uint16[L, H, P] is the pool before the first reported step
    (65535 = free slot); for a log from step 0 it is the pool that step 0 starts with.
    """

    offset: NDArray[np.int64]
    block: NDArray[np.uint16]
    slot: NDArray[np.uint16]
    start: NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class ResidencyLog:
    """Report one simulation, arrays [S, L, H] over the reported steps.

    ``needed``: target blocks that were not resident; ``admitted``: those fetched (the others
    are deferred); ``overlap``: attended blocks that the true query would have chosen;
    ``mass``: attention mass of the attended and the always resident blocks (None without mass).
    """

    needed: NDArray[np.int32]
    admitted: NDArray[np.int32]
    overlap: NDArray[np.int32]
    mass: NDArray[np.float64] | None
    moves: Moves | None = None
