"""What a disaggregated run returns: steps of its decode nodes, and what passed between nodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.plan import Cluster
from oasis_sim.engine.result import RunResult, StepLog

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HandOvers:
    """Hold one value per request, N requests; times of -1 never happened.

    `prefill_start_ps`, `prefill_end_ps` (the extra step included), `sent_ps` and `ready_ps`: when
    prefill ran last, when its KV left and when all of it had arrived. `union_bytes` were sent
    at first, host to host; `gpu_bytes` GPU to GPU; `fetched_bytes` later, one step ahead.
    `recomputed_tokens` were prefilled again after a fault, `resent_bytes` sent again.
    """

    prefill_node: Int64
    decode_node: Int64
    prefill_start_ps: Int64
    prefill_end_ps: Int64
    sent_ps: Int64
    ready_ps: Int64
    union_bytes: Int64
    gpu_bytes: Int64
    fetched_bytes: Int64
    recomputed_tokens: Int64
    resent_bytes: Int64


@dataclass(frozen=True, eq=False)
class Timeline:
    """Hold means over bins of `bin_ps`, all nodes of a kind together, [bins] each."""

    bin_ps: int
    network_bytes: Float64
    decode_host_bytes: Float64
    staging_bytes: Float64
    resident: Float64


@dataclass(frozen=True)
class Held:
    """Say how much was held, in bytes: mean over the run, peak at once, all nodes together.

    `node_peak` is the most that one node held, `left` what is held at the end.
    """

    mean: float
    peak: int
    node_peak: int
    left: int


@dataclass(frozen=True, eq=False)
class ClusterResult:
    """Collect a disaggregated run.

    `run` holds the totals of all decode nodes and the first steps of each, in the order of their
    ends; `node` int32[S] says whose each is. `network_bytes` are all that the network carried,
    `hand_over_bytes` and `fetched_bytes` the two kinds, `vain_bytes` what was sent for nothing.
    `stalled_ps` is how long decode nodes stood still because of faults.
    """

    cluster: Cluster
    run: RunResult
    node: npt.NDArray[np.int32]
    hand_overs: HandOvers
    timeline: Timeline
    decode_host: Held
    staging: Held
    resident_mean: float
    network_bytes: int
    hand_over_bytes: int
    fetched_bytes: int
    vain_bytes: int
    stalled_ps: int
    prefill_busy_ps: int

    def first_node(self) -> RunResult:
        """Return the run as the first decode node saw it: its own steps only."""
        return dataclasses.replace(self.run, steps=some_steps(self.run.steps, self.node == 0))


def some_steps(steps: StepLog, chosen: Any) -> StepLog:
    """Return a part of a log: `chosen` is a slice or bool[S]."""
    fields = dataclasses.fields(StepLog)
    return StepLog(**{field.name: getattr(steps, field.name)[chosen] for field in fields})


def join_steps(parts: list[StepLog]) -> StepLog:
    """Return logs as one, in their order."""
    fields = dataclasses.fields(StepLog)
    return StepLog(
        **{field.name: np.concatenate([getattr(p, field.name) for p in parts]) for field in fields}
    )
