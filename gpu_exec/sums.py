"""All-reduces on known patterns: what each rank contributes, what the sum must be, a ring of them.

The numbers are small integers whose sum bf16 holds exactly, in whatever order it is taken: a result
is right to the bit or wrong. They differ between ranks, places and sites (the all-reduces of a
step), so that a missing rank, a shifted chunk or the result of another site is seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
EXACT = 256
"""bf16 holds every integer up to here."""
PER_LAYER = 2
"""All-reduces of a layer under tensor parallelism: after the output projection and the FFN."""


def contribution(rank: int, ranks: int, elements: int, sites: int) -> Floats:
    """Return a rank's numbers, float32[elements + sites]; site s takes `elements` from s on.

    The sum over all ranks stays below `EXACT`.
    """
    random = np.random.default_rng((ranks, rank))
    return random.integers(0, max(2, EXACT // ranks), elements + sites).astype(np.float32)


def expected_sum(ranks: int, elements: int, sites: int) -> Floats:
    """Return the sum of all contributions, float32[elements + sites]."""
    total = np.zeros(elements + sites, dtype=np.float32)
    for rank in range(ranks):
        total += contribution(rank, ranks, elements, sites)
    return total


def ring_all_reduce(buffers: list[Floats]) -> None:
    """Sum float32[n] of every rank in place: a ring that reduces and scatters, then gathers."""
    ranks = len(buffers)
    chunks = [np.array_split(buffer, ranks) for buffer in buffers]
    for turn in range(2 * (ranks - 1)):
        reducing = turn < ranks - 1
        sent = [(rank - turn) % ranks for rank in range(ranks)]
        parts = [chunks[rank][sent[rank]].copy() for rank in range(ranks)]
        for rank, part in enumerate(parts):
            target = chunks[(rank + 1) % ranks][sent[rank]]
            target[:] = target + part if reducing else part
