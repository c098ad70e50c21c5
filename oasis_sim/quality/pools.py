"""The working set of one layer while a model decodes: one pool per KV head.

The pools are those of ``oasis_sim.residency.plain``: a model that really decodes and a trace that
is replayed move the same blocks by the same code, which the tests hold equal to the compiled core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.plain import HeadPool, caps_of
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.trace import Order


@dataclass(frozen=True, eq=False)
class LayerStep:
    """Report one step of a layer: blocks that attention reads, bool [H, B], and counts [H].

    ``overlap`` counts the chosen blocks that the true query would have chosen.
    """

    attended: NDArray[np.bool_]
    needed: NDArray[np.int32]
    admitted: NDArray[np.int32]
    overlap: NDArray[np.int32]


class LayerPools:
    """Hold the pools of a layer's KV heads and move them step by step."""

    def __init__(self, rule: ResidencyRule, heads: int) -> None:
        """Start with empty pools."""
        self._rule = rule
        self._pools = [HeadPool(rule) for _ in range(heads)]
        self._step = 0

    def advance(self, position: int, use: Order, target: Order) -> LayerStep:
        """Take the next step, at a token position; orders uint16 [H, N].

        ``use`` is the order by the step's true query, ``target`` the one that was predicted for
        this step. The first step starts with the true set, whatever was predicted.
        """
        heads, rule = len(self._pools), self._rule
        last = rule.last_candidate(position)
        attended = np.zeros((heads, position // rule.block_tokens + 1), dtype=np.bool_)
        attended[:, : rule.sink_blocks] = True
        attended[:, max(last + 1, 0) :] = True
        needed, admitted, overlap = (np.zeros(heads, dtype=np.int32) for _ in range(3))
        true_sets = [
            pool.choose(order, position) for pool, order in zip(self._pools, use, strict=True)
        ]
        goals = true_sets
        if self._step == 0:
            for pool, true_set in zip(self._pools, true_sets, strict=True):
                pool.fill(true_set)
        else:
            goals = [
                pool.choose(order, position)
                for pool, order in zip(self._pools, target, strict=True)
            ]
            caps = caps_of(self._pools, goals, rule)
            for head, pool in enumerate(self._pools):
                needed[head], fetched = pool.advance(self._step, goals[head], caps[head])
                admitted[head] = len(fetched)
        for head, pool in enumerate(self._pools):
            read = pool.attended(goals[head])
            attended[head, list(read)] = True
            overlap[head] = len(read & set(true_sets[head]))
        self._step += 1
        return LayerStep(attended, needed, admitted, overlap)
