"""One replica under its share of the load: whether it meets the targets and keeps up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from oasis_sim.engine import simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import CLOSED_LOOP, ScenarioSpec
from oasis_sim.metrics import check_conservation, summarise
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.slo import Reading, Target, read
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import Workload

MOST_WAITING = 0.05
"""A replica keeps up when at most this share of its requests waits at the last arrival."""


@dataclass(frozen=True)
class Probe:
    """Hold what one simulation of one replica said.

    `prefill_share` is the time that the prefill of what arrives takes, as a share of the time in
    which it arrives (0 where nothing is asked of a rate).
    """

    readings: tuple[Reading, ...]
    waiting_share: float
    refused: int
    prefill_share: float
    summary: Mapping[str, Any]

    @property
    def keeps_up(self) -> bool:
        """Tell whether no queue was left behind, and none grows beyond what was simulated."""
        return self.waiting_share <= MOST_WAITING and not self.refused and self.prefill_share <= 1

    @property
    def met(self) -> bool:
        """Tell whether every target is met by a replica that keeps up."""
        return self.keeps_up and all(reading.met for reading in self.readings)

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


class Prober:
    """Simulate one replica of a fleet of some size; each size once.

    `change` alters what is simulated in a way that its names cannot say.
    """

    def __init__(
        self,
        spec: ScenarioSpec,
        targets: Sequence[Target],
        inputs: Inputs,
        change: Callable[[Scenario], Scenario] = lambda scenario: scenario,
    ) -> None:
        self.spec = spec
        self.targets = targets
        self._inputs = inputs
        self._change = change
        self._known: dict[int, Probe] = {}

    @property
    def simulations(self) -> int:
        """Return how many sizes were simulated."""
        return len(self._known)

    def at(self, replicas: int) -> Probe:
        """Return the probe of one replica out of some."""
        if replicas not in self._known:
            scenario = self.share(replicas)
            share = self.busy_replicas / replicas
            self._known[replicas] = self._simulate(scenario, prefill_share=share)
        return self._known[replicas]

    def is_enough(self, replicas: int) -> bool:
        """Tell whether that many replicas meet every target."""
        return self.at(replicas).met

    def share(self, replicas: int) -> Scenario:
        """Return what one replica sees: a thinned Poisson process, or every n-th request."""
        return self._inputs.scenario(share_of(self.spec, replicas))

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
        return self._simulate(self._inputs.scenario(spec), queue_counts=False)

    def _simulate(
        self, scenario: Scenario, *, prefill_share: float = 0.0, queue_counts: bool = True
    ) -> Probe:
        result = simulate(replace(self._change(scenario), schedule_steps=0))
        check_conservation(result)
        summary = summarise(result)
        waiting = waiting_share(result) if queue_counts else 0.0
        refused = int(summary["requests"]["rejected"])
        readings = read(result, self.targets)
        return Probe(readings, waiting, refused, prefill_share, summary)


def share_of(spec: ScenarioSpec, replicas: int) -> ScenarioSpec:
    """Return the scenario of one replica of several.

    Random arrivals are dealt out at random, which leaves a thinned Poisson process; requests of a
    file are dealt out in turn, and the first replica gets every n-th.
    """
    load = spec.load
    if load.rate_per_s is None:
        return replace(spec, load=replace(load, every=replicas * load.every))
    return replace(spec, load=replace(load, rate_per_s=load.rate_per_s / replicas))


def waiting_share(result: RunResult) -> float:
    """Return the share of requests that still wait for admission when the last one arrives."""
    requests = result.requests
    last = int(requests.arrival_ps.max())
    early = requests.arrival_ps < last
    waits = early & ((requests.admitted_ps < 0) | (requests.admitted_ps > last))
    return int(np.count_nonzero(waits)) / len(requests)


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
