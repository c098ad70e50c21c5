"""Which blocks decode nodes fetch, request by request: `residency.remote` as tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.walks import GOLDEN_32, Walks, residency_rule
from oasis_sim.residency.remote import Coverage, coverage, grown, trace_depth

Float64 = npt.NDArray[np.float64]


KEPT_COVERAGES = 128
_coverage = lru_cache(maxsize=KEPT_COVERAGES)(coverage)
"""Kept, since a plan or a sweep simulates the same requests on other nodes."""


@dataclass(frozen=True, eq=False)
class Need:
    """Say what one request needs of its remote KV.

    `union` are the blocks sent at first, all layers together. In a group of equal layers `rest`
    float64[G] blocks of each layer stay behind; after t steps the share `table[t]` of them has been
    fetched, float64[T, G]. `phase` in 0..1 shifts the rounding, so that requests do not fetch in
    step.
    """

    union: int
    rest: Float64
    table: Float64
    phase: float

    def fetched(self, steps: int, group_size: npt.NDArray[np.int64]) -> int:
        """Return the blocks fetched after `steps` steps, all layers together."""
        return int((np.floor(self.rest * self.table[steps] + self.phase) * group_size).sum())


class Growth:
    """Build what requests need, each trace and depth once."""

    def __init__(self, scenario: Scenario, walks: Walks) -> None:
        self._scenario = scenario
        self._rule = residency_rule(scenario.scheme)
        self._group = walks.tables.group
        self._size = walks.tables.group_size
        self._longest = int(scenario.workload.output_tokens.max())
        self._tables: dict[tuple[int, int], tuple[Coverage, Float64]] = {}
        self._sent: dict[tuple[int, int], tuple[int, Float64]] = {}

    def need(self, request: int, prompt: int) -> Need:
        """Return what a request needs; it follows the trace that its walk follows."""
        which = request % len(self._scenario.traces)
        blocks = prompt // self._scenario.scheme.block_tokens
        key = which, blocks
        if key not in self._sent:
            self._sent[key] = self._split(which, blocks)
        phase = (request * GOLDEN_32 % 2**32) / 2**32
        union, rest = self._sent[key]
        return Need(union, rest, self._table(which, blocks)[1], phase)

    def _split(self, which: int, blocks: int) -> tuple[int, Float64]:
        """Return the blocks that are sent at first, and those of a layer that stay behind."""
        scheme = self._scenario.scheme
        found = self._table(which, blocks)[0]
        held = found.union_blocks(blocks, scheme.chosen_blocks)
        # Sink blocks and the newest ones are attended beside the chosen.
        always = scheme.sink_blocks + scheme.recent_blocks
        union = np.minimum(np.rint(held) + always, blocks + 1)
        sums = np.bincount(self._group, weights=union, minlength=len(self._size))
        return int(union.sum()), np.maximum(blocks - sums / self._size, 0.0)

    def coverage(self, request: int, prompt: int) -> Coverage:
        """Return the shares behind a request."""
        blocks = prompt // self._scenario.scheme.block_tokens
        return self._table(request % len(self._scenario.traces), blocks)[0]

    def _table(self, which: int, blocks: int) -> tuple[Coverage, Float64]:
        scenario = self._scenario
        trace = scenario.traces[which]
        key = which, trace_depth(trace, self._rule, blocks)
        if key not in self._tables:
            found = _coverage(
                trace,
                self._rule,
                scenario.scheme.predictor,
                scenario.drafter,
                scenario.model,
                blocks,
            )
            alpha = np.bincount(self._group, weights=found.alpha) / self._size
            steps = np.arange(self._longest + 2, dtype=np.float64)[:, None]
            self._tables[key] = found, grown(steps, alpha, found.tau)
        return self._tables[key]
