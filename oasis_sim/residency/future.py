"""Eviction that knows the future (Belady): the block that is selected again last goes first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled
from oasis_sim.residency.arrays import Head, Path, Sizes, Trace
from oasis_sim.residency.core import candidates

NEVER = 2**31 - 1


class Future(NamedTuple):
    """Say when blocks are selected again; arrays of length 0 say nothing.

    `after` int32[H, S, k]: for each block of a step's target, the next step that selects it.
    `next_use` int32[H, blocks]: the same for every block, as seen from the present step.
    """

    after: NDArray[np.int32]
    next_use: NDArray[np.int32]


@compiled
def foresee(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    place: tuple[int, int],
    chosen: NDArray[np.uint16],
    future: Future,
    row: int,
) -> None:
    """Fill the future of a head, (layer, head), by going through its targets backwards."""
    next_use = future.next_use[row]
    next_use[:] = NEVER
    for back in range(path.use_row.shape[0] - 1):
        step = path.use_row.shape[0] - 1 - back
        order = trace.target[path.target_row[step], place[0], place[1]]
        target = candidates(order, sizes, path.target_position[step], chosen)
        for index in range(target):
            future.after[row, step, index] = next_use[chosen[index]]
            next_use[chosen[index]] = step


@compiled
def look_ahead(head: Head, target: int, step: int, end: int, future: Future, number: int) -> None:
    """Bring a head's future to a step, and its blocks outside the target in eviction order."""
    next_use, outside = future.next_use[number], head.outside
    for index in range(target):
        next_use[head.chosen[index]] = future.after[number, step, index]
    for index in range(1, end):
        block = outside[index]
        place = index
        while place > 0 and (
            next_use[outside[place - 1]] < next_use[block]
            or (next_use[outside[place - 1]] == next_use[block] and outside[place - 1] > block)
        ):
            outside[place] = outside[place - 1]
            place -= 1
        outside[place] = block
