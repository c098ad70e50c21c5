"""Blocks fetched once per layer: the compiled count behind ``oasis_sim.residency.remote``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled

_NO_BLOCK = 65535


@compiled
def count_first_fetches(
    start: NDArray[np.uint16],
    offset: NDArray[np.int64],
    block: NDArray[np.uint16],
    held: NDArray[np.bool_],
    union: NDArray[np.int64],
    fetched: NDArray[np.int64],
) -> None:
    """Count the blocks that no head of a layer held before.

    `start` uint16[L, H, P] is what every head holds at first (65535: nothing), `offset`
    int64[S*L*H+1] bounds each head's admissions in `block`, step after step. Blocks from
    ``held.shape[0]`` on do not count; `held` bool[blocks] is scratch. `union` int64[L] receives
    the distinct blocks at first, `fetched` int64[S, L] those that each step adds.
    """
    layers, heads = start.shape[0], start.shape[1]
    for layer in range(layers):
        held[:] = False
        union[layer] = 0
        for head in range(heads):
            for slot in range(start.shape[2]):
                one = start[layer, head, slot]
                if one != _NO_BLOCK and one < held.shape[0] and not held[one]:
                    held[one] = True
                    union[layer] += 1
        for step in range(fetched.shape[0]):
            fetched[step, layer] = 0
            first = (step * layers + layer) * heads
            for index in range(offset[first], offset[first + heads]):
                one = block[index]
                if one < held.shape[0] and not held[one]:
                    held[one] = True
                    fetched[step, layer] += 1
