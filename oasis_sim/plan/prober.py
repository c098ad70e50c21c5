"""One replica under its share of the load, or nodes under all of it: each size simulated once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from oasis_sim.cluster import ClusterResult, load_cluster, prefill_alone
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import CLOSED_LOOP, ScenarioSpec
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.outcome import begun, checked, simulated
from oasis_sim.plan.probe import (
    Probe,
    mean_output_tokens,
    requests_per_s,
    room_share,
    share_of,
    spares_prefill,
    waiting_share,
    with_nodes,
)
from oasis_sim.plan.slo import Target, read, read_requests
from oasis_sim.plan.verdict import Verdict
from oasis_sim.units import PS_PER_S


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
        self._begun: dict[ScenarioSpec, Verdict] = {}
        self._alone: dict[int, Probe] = {}

    @property
    def simulations(self) -> int:
        """Return how many sizes were simulated, those of prefill alone included."""
        return len(self._known.keys() | self._begun.keys()) + len(self._alone)

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
        if spec in self._begun:
            return self._begun[spec].whole()
        if spec not in self._known:
            share = 0.0 if nodes else self.busy_replicas / replicas
            self._known[spec] = self._simulate(spec, prefill_share=share)
        return self._known[spec]

    def on_nodes(self, prefill: int, decode: int) -> Probe:
        """Return the probe of so many prefill and decode nodes under the whole load."""
        return self.verdict(prefill, decode).whole()

    def verdict(self, prefill: int, decode: int) -> Verdict:
        """Return what can be asked of so many nodes; each question is simulated as far as need be.

        So few that a fault leaves none of a kind are not enough.
        """
        spec = with_nodes(self.spec, prefill, decode)
        if spec not in self._begun:
            assert spec.disaggregation is not None
            scenario = self._scenario(spec)
            self._begun[spec] = Verdict(
                partial(begun, spec, scenario, self._inputs),
                self.targets,
                partial(self._probe, scenario),
                partial(self._tally.add, under_load=True),
                may_fail=bool(spec.disaggregation.faults),
            )
        return self._begun[spec]

    def nodes_for_load(self, prefill: int, decode: int) -> int:
        """Return how many decode nodes would give the load's tokens at the pace of these; or 0.

        A place to look at next, of which nothing else hangs: what so few nodes give was observed
        while their queue grew.
        """
        given = self.verdict(prefill, decode).tokens_per_s
        workload = self._inputs.scenario(self.spec).workload
        asked = requests_per_s(self.spec, workload) * mean_output_tokens(workload)
        return math.ceil(min(decode * asked / given, sys.maxsize)) if given else 0

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

    def _scenario(self, spec: ScenarioSpec) -> Scenario:
        return replace(self._change(self._inputs.scenario(spec)), schedule_steps=0)

    def _simulate(
        self, spec: ScenarioSpec, *, prefill_share: float = 0.0, queue_counts: bool = True
    ) -> Probe:
        scenario = self._scenario(spec)
        result = simulated(spec, scenario, self._inputs)
        self._tally.add(under_load=queue_counts)
        return self._probe(scenario, result, prefill_share, queue_counts=queue_counts)

    def _probe(
        self,
        scenario: Scenario,
        result: RunResult | ClusterResult,
        prefill_share: float = 0.0,
        *,
        queue_counts: bool = True,
    ) -> Probe:
        """Return what a simulation said."""
        found = checked(result)
        requests, nodes = found.run.requests, found.nodes
        waiting = waiting_share(requests) if queue_counts else 0.0
        refused = int(found.summary["requests"]["rejected"])
        room, spare = 0.0, False
        if nodes is not None and queue_counts:
            room = room_share(requests, nodes.hand_overs)
            spare = spares_prefill(nodes.hand_overs, nodes.cluster)
            busy_ps, prefill = nodes.prefill_busy_ps, nodes.cluster.prefill
            prompts = len(requests) - refused
            prefill_share = self._share_of_nodes(busy_ps, prompts, prefill, scenario)
        readings = read(found.run, self.targets)
        given = float(found.summary["throughput"]["output_tokens_per_s"] or 0.0)
        return Probe(
            *(readings, waiting + room, refused, prefill_share, found.summary, room, spare),
            tokens_per_s=given,
        )
