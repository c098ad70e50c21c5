"""How many blocks each head may admit where heads share their caps, in compiled code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled
from oasis_sim.residency.arrays import Head

Int64 = NDArray[np.int64]


@compiled
def split(needed: Int64, total: int, quotas: Int64) -> None:
    """Split `total` admissions over layers in proportion to what each needed a step before.

    The largest remainders are rounded up, lower layers first among equals; evenly when none
    needed anything.
    """
    layers = needed.shape[0]
    whole = 0
    for layer in range(layers):
        whole += needed[layer]
    left = total
    for layer in range(layers):
        quotas[layer] = total * needed[layer] // whole if whole > 0 else total // layers
        left -= quotas[layer]
    rest = np.empty(layers, np.int64)
    for layer in range(layers):
        rest[layer] = total * needed[layer] % whole if whole > 0 else 0
    for _ in range(left):
        largest = 0
        for layer in range(layers):
            if rest[layer] > rest[largest]:
                largest = layer
        quotas[largest] += 1
        rest[largest] = -1


@compiled
def spread(
    group: Head, rows: tuple[int, int], targets: Int64, limits: Int64, total: int, grants: Int64
) -> None:
    """Spread `total` admissions over heads that miss blocks: one each in turn, lower heads first.

    `rows` bounds the heads in `group`; `targets` int64[rows] says how many blocks of each head's
    target may be admitted when they miss, `limits` how many admissions a head may have.
    """
    first, last = rows
    wanted = np.zeros(last - first, np.int64)
    for row in range(first, last):
        grants[row] = 0
        for rank in range(targets[row]):
            wanted[row - first] += group.slot_of[row, group.chosen[row, rank]] < 0
        wanted[row - first] = min(wanted[row - first], limits[row])
    granted = -1
    while granted != 0:
        granted = 0
        for row in range(first, last):
            if total > 0 and grants[row] < wanted[row - first]:
                grants[row] += 1
                granted += 1
                total -= 1
