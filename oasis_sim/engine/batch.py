"""Requests in service, and the arrays that the compiled steps work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from oasis_sim.engine.stretch import Rows


class Phase(IntEnum):
    """Name the stations of a request's life."""

    WAITING = 0
    PREFILL = 1
    DENSE = 2
    SPARSE = 3
    DONE = 4


@dataclass(slots=True, eq=False)
class Job:
    """Follow one request through the serving loop (the only mutable record of it).

    `context` counts tokens whose KV exists, `target` those that prefill has to reach (after a
    preemption it includes what was generated). `hbm_bytes` and `host_bytes` are what the job
    holds of each pool. `walk` is its place in the walk tables, whose cycle starts at `walk_first`
    and has `walk_length` steps.
    """

    index: int
    prompt: int
    output: int
    target: int
    walk_first: int
    walk_length: int
    walk: int
    context: int = 0
    generated: int = 0
    phase: Phase = Phase.WAITING
    offloading: bool = False
    preemptions: int = 0
    hbm_bytes: int = 0
    host_bytes: int = 0

    @property
    def remaining(self) -> int:
        """Return the tokens still to generate."""
        return self.output - self.generated

    def grow(self, tokens: int, growth: int) -> int:
        """Generate tokens of `growth` bytes each; return their bytes in all."""
        self.context += tokens
        self.generated += tokens
        self.hbm_bytes += tokens * growth
        return tokens * growth


def rows_of(sparse: Sequence[Job], dense: Sequence[Job]) -> Rows:
    """Return the arrays for these rows, one entry per job in order."""
    return Rows(
        context=np.array([job.context for job in sparse], dtype=np.int64),
        walk=np.array([job.walk for job in sparse], dtype=np.int64),
        walk_first=np.array([job.walk_first for job in sparse], dtype=np.int64),
        walk_length=np.array([job.walk_length for job in sparse], dtype=np.int64),
        dense_context=np.array([job.context for job in dense], dtype=np.int64),
    )
