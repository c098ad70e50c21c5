"""One replica under its share of the load: whether it meets the targets and keeps up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oasis_sim.engine import simulate
from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import CLOSED_LOOP, POISSON, ScenarioSpec
from oasis_sim.metrics import check_conservation, summarise
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.slo import Reading, Target, read
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import Workload

MOST_WAITING = 0.05
"""A replica keeps up when at most this share of its requests waits at the last arrival."""


@dataclass(frozen=True)
class Probe:
    """Hold what one simulation of one replica said."""

    readings: tuple[Reading, ...]
    waiting_share: float
    refused: int
    summary: Mapping[str, Any]

    @property
    def keeps_up(self) -> bool:
        """Tell whether no queue was left behind."""
        return self.waiting_share <= MOST_WAITING and not self.refused

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
            self._known[replicas] = self._simulate(self.share(replicas))
        return self._known[replicas]

    def is_enough(self, replicas: int) -> bool:
        """Tell whether that many replicas meet every target."""
        return self.at(replicas).met

    def share(self, replicas: int) -> Scenario:
        """Return what one replica sees: a thinned Poisson process, or every n-th request."""
        load = self.spec.load
        if load.kind != POISSON:
            whole = self._inputs.scenario(self.spec)
            return replace(whole, workload=every(whole.workload, replicas))
        return self._inputs.scenario(share_of(self.spec, replicas))

    def alone(self) -> Probe:
        """Return the probe of a request that has a replica to itself: the least load there is."""
        load = replace(self.spec.load, kind=CLOSED_LOOP, requests=2, rate_per_s=None)
        spec = replace(self.spec, load=load, concurrency=1)
        return self._simulate(self._inputs.scenario(spec), queue_counts=False)

    def _simulate(self, scenario: Scenario, *, queue_counts: bool = True) -> Probe:
        result = simulate(self._change(scenario))
        check_conservation(result)
        summary = summarise(result)
        waiting = waiting_share(result) if queue_counts else 0.0
        refused = int(summary["requests"]["rejected"])
        return Probe(read(result, self.targets), waiting, refused, summary)


def share_of(spec: ScenarioSpec, replicas: int) -> ScenarioSpec:
    """Return the scenario of one replica when random arrivals are dealt out evenly at random."""
    rate = spec.load.rate_per_s
    assert rate is not None
    return replace(spec, load=replace(spec.load, rate_per_s=rate / replicas))


def every(workload: Workload, step: int) -> Workload:
    """Return every `step`-th request: what one replica sees when they are dealt out in turn."""
    return replace(
        workload,
        arrival_ps=workload.arrival_ps[::step],
        prompt_tokens=workload.prompt_tokens[::step],
        output_tokens=workload.output_tokens[::step],
    )


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
