"""What attention has read of resident blocks, and what follows: who leaves, who may come.

Attention knows how much each block that it read held of its softmax. A head keeps that of every
resident block, averaged over the last steps, and what its newly fetched blocks held when they were
read for the first time. A prediction for step s is made while step s - 1 runs, so a decision knows
what was read up to step s - 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled
from oasis_sim.residency.arrays import Attended, Head

UNREAD = np.inf
"""The share of a block that was not read yet: it leaves last."""

NEWEST_STEP = 0.5
NEWEST_FETCH = 0.0625
"""How much the newest reading of a block counts, and the newest fetch in what fetches are worth."""

Float64 = NDArray[np.float64]


class Observed(NamedTuple):
    """Hold what attention read, heads as first axis; arrays of length 0 hold nothing.

    `held` float64[H, blocks] is the share of each resident block, `worth` float64[H] what a fetched
    block held when it was first read. `known` and `known_worth` are these as decisions know them.
    """

    held: Float64
    known: Float64
    worth: Float64
    known_worth: Float64


class Reading(NamedTuple):
    """Hold the mass of a head's blocks in a step: codes, units of codes, how many blocks exist.

    `captured` is the mass of all that was read, 1 or more.
    """

    mass: NDArray[np.uint8]
    units: NDArray[np.int64]
    blocks: int
    captured: int


@compiled
def least_attended_first(head: Head, end: int, known: Float64) -> None:
    """Sort the blocks outside the target: least share first, then lower id; unread ones last."""
    outside = head.outside
    for index in range(1, end):
        block = outside[index]
        share = known[block]
        place = index
        while place > 0:
            other = outside[place - 1]
            if known[other] < share or (known[other] == share and other < block):
                break
            outside[place] = other
            place -= 1
        outside[place] = block


@compiled
def gainful(head: Head, end: int, free: int, known: Float64, worth: float) -> int:
    """Return how many blocks may come: into free slots, and for blocks that held less than them."""
    count = 0
    while count < end and known[head.outside[count]] <= worth:
        count += 1
    return free + count


@compiled
def observe(
    head: Head,
    admitted: int,
    attended: Attended,
    reading: Reading,
    observed: Observed,
    row: int,
) -> None:
    """Note what attention read of a head's blocks in a step.

    Before that, what was noted in the step before becomes known.
    """
    held, known = observed.held[row], observed.known[row]
    for index in range(attended.begin):
        block = head.outside[index]
        known[block] = held[block]
    _note(held, known, head.outside[attended.begin : attended.end], reading)
    _note(held, known, head.inside[: attended.inside], reading)
    observed.known_worth[row] = observed.worth[row]
    for index in range(admitted):
        share = held[head.missing[index]]
        worth = observed.worth[row]
        if share != UNREAD:
            new = share if worth == UNREAD else worth + (share - worth) * NEWEST_FETCH
            observed.worth[row] = new


@compiled
def _note(held: Float64, known: Float64, read: NDArray[np.uint16], reading: Reading) -> None:
    """Note the shares of blocks that were read."""
    mass, units = reading.mass, reading.units
    for block in read:
        before = held[block]
        known[block] = before
        if block < reading.blocks:
            share = units[mass[block]] / reading.captured
            held[block] = share if before == UNREAD else before + (share - before) * NEWEST_STEP


@compiled
def forget(head: Head, admitted: int, observed: Observed, row: int) -> None:
    """Forget what blocks held that were just fetched again: it was in another life."""
    for index in range(admitted):
        observed.held[row, head.missing[index]] = UNREAD
        observed.known[row, head.missing[index]] = UNREAD
