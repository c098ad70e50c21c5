"""One request on its way: prefill node, network, decode node."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from oasis_sim.cluster.growth import Need
from oasis_sim.engine.batch import Job
from oasis_sim.engine.fabric import Flow

NOWHERE = -1
"""The prefill node of a request that depends on none: it has died, or has sent all."""


class Stage(IntEnum):
    """Name where a request is."""

    QUEUED = 0
    PREFILL = 1
    STAGED = 2
    SENDING = 3
    DECODING = 4
    ENDED = 5


@dataclass(slots=True, eq=False)
class Visit:
    """Follow a request over the nodes.

    `prefill` and `decode` are nodes of their kind. `need` is what partial fetching sends and
    fetches (None: everything is sent), `sparse` says whether it decodes from a working set.
    `hbm_bytes` and `host_bytes` are reserved on the decode
    node, `staged_bytes` on the prefill node. `in_turn`: its hand-over is under way. `age` counts
    the decode steps on this decode node, `life` the prefills: what was started in an earlier life
    is void.
    """

    job: Job
    prefill: int = NOWHERE
    decode: int = -1
    stage: Stage = Stage.QUEUED
    need: Need | None = None
    sparse: bool = False
    hbm_bytes: int = 0
    host_bytes: int = 0
    staged_bytes: int = 0
    held_bytes: int = 0
    prefill_ps: int = 0
    in_turn: bool = False
    age: int = 0
    life: int = 0
    flows: list[Flow] = field(default_factory=list)

    @property
    def joined(self) -> bool:
        """Say whether the request has been in a decode node's batch."""
        return self.stage in (Stage.DECODING, Stage.ENDED)

    @property
    def context(self) -> int:
        """Return the tokens that prefill computes: the prompt, after a fault with its output."""
        return self.job.target
