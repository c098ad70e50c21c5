"""What became of one simulation: its summary, or why it was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.cluster import load_cluster, simulate_cluster
from oasis_sim.engine import simulate
from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.metrics import (
    check_cluster,
    check_conservation,
    summarise,
    summarise_cluster,
)
from oasis_sim.plan.inputs import Inputs


@dataclass(frozen=True)
class Outcome:
    """Hold the summary of a run, or the reason why there is none (it does not fit)."""

    summary: Mapping[str, Any] | None = None
    refusal: str | None = None


def make_simulator() -> Callable[[ScenarioSpec], Outcome]:
    """Return a function that simulates scenarios and keeps their inputs loaded."""
    inputs = Inputs()

    def run(spec: ScenarioSpec) -> Outcome:
        scenario = inputs.scenario(spec)
        try:
            if spec.disaggregation is None:
                result = simulate(scenario)
            else:
                cluster = load_cluster(spec.disaggregation, scenario, inputs.network(spec))
                on_nodes = simulate_cluster(scenario, cluster)
        except (RunFailed, UsageError) as error:
            return Outcome(refusal=str(error))
        if spec.disaggregation is None:
            check_conservation(result)
            return Outcome(summarise(result))
        check_cluster(on_nodes)
        return Outcome(summarise_cluster(on_nodes))

    return run
