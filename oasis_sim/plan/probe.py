"""One replica under its share of the load: whether it meets the targets and keeps up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oasis_sim.cluster import Cluster
from oasis_sim.cluster.result import HandOvers
from oasis_sim.engine.result import RequestLog
from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.plan.slo import Reading
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import Workload

DECODE_PACE = ("tpot", "itl")
MOST_WAITING = 0.05
"""A replica keeps up when at most this share of its requests waits at the last arrival."""


@dataclass(frozen=True)
class Probe:
    """Hold what one simulation of one replica said, or of all nodes where prefill has its own.

    `prefill_share` is the time that the prefill of what arrives takes, as a share of the time in
    which it arrives (0 where nothing is asked of a rate). `room_share` is the part of
    `waiting_share` that waits for room on a decode node. `spare_prefill`: a prefill node was never
    chosen, so more of them would change nothing. `failure` says why faults let a run come to no
    end; there is no summary then. `tokens_per_s` is what decode nodes gave in the time simulated.
    """

    readings: tuple[Reading, ...]
    waiting_share: float
    refused: int
    prefill_share: float
    summary: Mapping[str, Any]
    room_share: float = 0.0
    spare_prefill: bool = False
    failure: str = ""
    tokens_per_s: float = 0.0

    @property
    def keeps_up(self) -> bool:
        """Tell whether no queue was left behind, and none grows beyond what was simulated."""
        return self.waiting_share <= MOST_WAITING and not self.refused and self.prefill_share <= 1

    @property
    def met(self) -> bool:
        """Tell whether every target is met by a replica that keeps up."""
        return self.keeps_up and not self.failure and all(each.met for each in self.readings)

    @property
    def lacks_decode_nodes(self) -> bool:
        """Tell whether the pace of decode, or room for it, is missed."""
        slow = any(not each.met and each.target.metric in DECODE_PACE for each in self.readings)
        return slow or self.room_share > MOST_WAITING

    @property
    def tightest(self) -> Reading:
        """Return the target with the least head-room."""
        return min(self.readings, key=_room)

    @property
    def span_s(self) -> float:
        """Return the time over which requests arrived."""
        return float(self.summary["scenario"]["workload"]["span_s"] or 0.0)

    @property
    def e2e_s(self) -> float:
        """Return the mean time that a request stayed."""
        return float(self.summary["latency"]["e2e_ms"]["mean"] or 0.0) / 1000


def _room(reading: Reading) -> float:
    return -float("inf") if reading.head_room is None else reading.head_room


def with_nodes(spec: ScenarioSpec, prefill: int, decode: int) -> ScenarioSpec:
    """Return a disaggregated scenario on other numbers of nodes."""
    assert spec.disaggregation is not None
    nodes = replace(spec.disaggregation, prefill=prefill, decode=decode)
    return replace(spec, disaggregation=nodes)


def share_of(spec: ScenarioSpec, replicas: int) -> ScenarioSpec:
    """Return the scenario of one replica of several.

    Random arrivals are dealt out at random, which leaves a thinned Poisson process; requests of a
    file are dealt out in turn, and the first replica gets every n-th.
    """
    load = spec.load
    if load.rate_per_s is None:
        return replace(spec, load=replace(load, every=replicas * load.every))
    return replace(spec, load=replace(load, rate_per_s=load.rate_per_s / replicas))


def waiting_share(requests: RequestLog) -> float:
    """Return the share of requests that still wait for admission when the last one arrives."""
    last = int(requests.arrival_ps.max())
    early = requests.arrival_ps < last
    waits = early & ((requests.admitted_ps < 0) | (requests.admitted_ps > last))
    return int(np.count_nonzero(waits)) / len(requests)


def room_share(requests: RequestLog, moves: HandOvers) -> float:
    """Return the share of requests that wait for room on a decode node at the last arrival."""
    last = int(requests.arrival_ps.max())
    prefilled = (requests.arrival_ps < last) & (moves.prefill_end_ps >= 0)
    # What prefill gives all its tokens is never sent, and has ended.
    left = np.where(moves.sent_ps < 0, requests.finish_ps, moves.sent_ps)
    waits = prefilled & (moves.prefill_end_ps <= last) & (left > last)
    return int(np.count_nonzero(waits)) / len(requests)


def spares_prefill(moves: HandOvers, cluster: Cluster) -> bool:
    """Tell whether a prefill node was never chosen: of those with the least work the first is."""
    return int(moves.prefill_node.max()) + 1 < cluster.prefill and not cluster.faults.texts


def mean_output_tokens(workload: Workload) -> float:
    """Return the mean number of tokens that a request generates."""
    return int(workload.output_tokens.sum()) / len(workload.output_tokens)


def mean_sizes(workload: Workload) -> tuple[int, int]:
    """Return the mean prompt and output of a request, in whole tokens."""
    number = len(workload.prompt_tokens)
    prompt, output = int(workload.prompt_tokens.sum()), int(workload.output_tokens.sum())
    return max(1, round(prompt / number)), max(1, round(output / number))


def requests_per_s(spec: ScenarioSpec, workload: Workload) -> float:
    """Return the rate of arrivals: as asked for, or as the file has it."""
    if spec.load.rate_per_s is not None:
        return spec.load.rate_per_s
    span_ps = int(workload.arrival_ps[-1]) - int(workload.arrival_ps[0])
    return (len(workload.arrival_ps) - 1) * PS_PER_S / span_ps if span_ps else float("inf")
