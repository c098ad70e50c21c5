"""One replica under its share of the load: whether it meets the targets and keeps up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from oasis_sim.cluster import ClusterResult, load_cluster, prefill_alone
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import RequestLog
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import CLOSED_LOOP, ScenarioSpec
from oasis_sim.errors import RunFailed
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.outcome import checked, simulated
from oasis_sim.plan.slo import Reading, Target, read, read_requests
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
    end; there is no summary then.
    """

    readings: tuple[Reading, ...]
    waiting_share: float
    refused: int
    prefill_share: float
    summary: Mapping[str, Any]
    room_share: float = 0.0
    spare_prefill: bool = False
    failure: str = ""

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


@dataclass
class Tally:
    """Count the simulations of a search, and tell their number after each.

    `under_load` are those of a replica, or of all nodes, under the load: not of a request alone,
    nor of prompts alone.
    """

    tell: Callable[[int], None] | None = None
    simulations: int = 0
    under_load: int = 0

    def add(self, *, under_load: bool) -> None:
        """Count one more."""
        self.simulations += 1
        self.under_load += under_load
        if self.tell is not None:
            self.tell(self.simulations)


class Prober:
    """Simulate one replica of a fleet of some size, or prefill and decode nodes; each size once.

    `change` alters what is simulated in a way that its names cannot say.
    """

    def __init__(
        self,
        spec: ScenarioSpec,
        targets: Sequence[Target],
        inputs: Inputs,
        change: Callable[[Scenario], Scenario] = lambda scenario: scenario,
        tally: Tally | None = None,
    ) -> None:
        self.spec = spec
        self.targets = targets
        self._inputs = inputs
        self._change = change
        self._tally = tally or Tally()
        self._known: dict[ScenarioSpec, Probe] = {}
        self._alone: dict[int, Probe] = {}

    @property
    def simulations(self) -> int:
        """Return how many sizes were simulated, those of prefill alone included."""
        return len(self._known) + len(self._alone)

    @cached_property
    def most_useful(self) -> int:
        """Return how many nodes of a kind can have work: one a request; with faults, any number."""
        nodes = self.spec.disaggregation
        if nodes is not None and nodes.faults:
            return sys.maxsize
        return self._inputs.scenario(self.spec).workload.requests

    def at(self, replicas: int) -> Probe:
        """Return the probe of one replica out of some; on several nodes there is one replica."""
        nodes, spec = self.spec.disaggregation, share_of(self.spec, replicas)
        if spec not in self._known:
            share = 0.0 if nodes else self.busy_replicas / replicas
            self._known[spec] = self._simulate(spec, prefill_share=share)
        return self._known[spec]

    def on_nodes(self, prefill: int, decode: int) -> Probe:
        """Return the probe of so many prefill and decode nodes under the whole load."""
        spec = with_nodes(self.spec, prefill, decode)
        if spec not in self._known:
            self._known[spec] = self._simulate_nodes(spec)
        return self._known[spec]

    def is_enough(self, replicas: int) -> bool:
        """Tell whether that many replicas meet every target."""
        return self.at(replicas).met

    @cached_property
    def busy_replicas(self) -> float:
        """Return how many replicas prefill alone keeps busy: fewer can never be enough."""
        whole = self._change(self._inputs.scenario(self.spec))
        cost = CostModel(whole.profile, whole.engine_name, whole.model, whole.scheme, whole.tp)
        lengths, counts = np.unique(whole.workload.prompt_tokens, return_counts=True)
        prompts = zip(lengths.tolist(), counts.tolist(), strict=True)
        work_ps = sum(cost.prefill_ps(0, length) * count for length, count in prompts)
        per_request_s = work_ps / PS_PER_S / whole.workload.requests
        return float(per_request_s * requests_per_s(self.spec, whole.workload))

    def alone(self) -> Probe:
        """Return the probe of a request that has a replica to itself: the least load there is."""
        load = replace(self.spec.load, kind=CLOSED_LOOP, requests=2, rate_per_s=None)
        spec = replace(self.spec, load=load, concurrency=1)
        if spec.disaggregation is not None:
            unharmed = replace(spec.disaggregation, faults=())
            spec = with_nodes(replace(spec, disaggregation=unharmed), 1, 1)
        return self._simulate(spec, queue_counts=False)

    def prefill_alone(self, prefill: int) -> Probe:
        """Return what is asked of prefill, on so many nodes without decode.

        No number of decode nodes betters it. Only for requests that arrive at times of their own,
        and without faults.
        """
        if prefill not in self._alone:
            spec = with_nodes(self.spec, prefill, 1)
            assert spec.disaggregation is not None
            scenario = self._change(self._inputs.scenario(spec))
            network = self._inputs.network(spec)
            requests = prefill_alone(scenario, load_cluster(spec.disaggregation, scenario, network))
            first = [each for each in self.targets if each.metric == "ttft"]
            readings = tuple(read_requests(requests, each) for each in first)
            done = requests.first_token_ps >= 0
            busy_ps = int((requests.first_token_ps - requests.admitted_ps)[done].sum())
            share = self._share_of_nodes(busy_ps, int(done.sum()), prefill, scenario)
            self._alone[prefill] = Probe(readings, waiting_share(requests), 0, share, {})
            self._tally.add(under_load=False)
        return self._alone[prefill]

    def _share_of_nodes(self, busy_ps: int, prompts: int, nodes: int, scenario: Scenario) -> float:
        """Return the share of their time that nodes need for the prompts that arrive."""
        rate = requests_per_s(self.spec, scenario.workload)
        return busy_ps / PS_PER_S / max(prompts, 1) * rate / nodes

    def _simulate_nodes(self, spec: ScenarioSpec) -> Probe:
        """Simulate nodes; so few that a fault leaves none of a kind are not enough."""
        try:
            return self._simulate(spec)
        except RunFailed as error:
            if spec.disaggregation is None or not spec.disaggregation.faults:
                raise
            return Probe((), 0.0, 0, 0.0, {}, failure=str(error))

    def _simulate(
        self, spec: ScenarioSpec, *, prefill_share: float = 0.0, queue_counts: bool = True
    ) -> Probe:
        scenario = replace(self._change(self._inputs.scenario(spec)), schedule_steps=0)
        result = simulated(spec, scenario, self._inputs)
        self._tally.add(under_load=queue_counts)
        found = checked(result)
        waiting = waiting_share(found.run.requests) if queue_counts else 0.0
        refused = int(found.summary["requests"]["rejected"])
        room, spare, nodes = 0.0, False, found.nodes
        if nodes is not None and queue_counts:
            room, spare = room_share(nodes), spares_prefill(nodes)
            prompts = len(found.run.requests) - refused
            busy_ps, prefill = nodes.prefill_busy_ps, nodes.cluster.prefill
            prefill_share = self._share_of_nodes(busy_ps, prompts, prefill, scenario)
        readings = read(found.run, self.targets)
        return Probe(readings, waiting + room, refused, prefill_share, found.summary, room, spare)


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


def room_share(result: ClusterResult) -> float:
    """Return the share of requests that wait for room on a decode node at the last arrival."""
    requests, moves = result.run.requests, result.hand_overs
    last = int(requests.arrival_ps.max())
    prefilled = (requests.arrival_ps < last) & (moves.prefill_end_ps >= 0)
    # What prefill gives all its tokens is never sent, and has ended.
    left = np.where(moves.sent_ps < 0, requests.finish_ps, moves.sent_ps)
    waits = prefilled & (moves.prefill_end_ps <= last) & (left > last)
    return int(np.count_nonzero(waits)) / len(requests)


def spares_prefill(result: ClusterResult) -> bool:
    """Tell whether a prefill node was never chosen: of those with the least work the first is."""
    chosen = int(result.hand_overs.prefill_node.max())
    return chosen + 1 < result.cluster.prefill and not result.cluster.faults.texts


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
