"""What became of one simulation: its summary, or why it was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.cluster import ClusterResult, ClusterRun, load_cluster
from oasis_sim.engine import simulate
from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
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


@dataclass(frozen=True, eq=False)
class Checked:
    """Hold a run that obeys its laws, its summary, and what passed between nodes, if several."""

    run: RunResult
    summary: Mapping[str, Any]
    nodes: ClusterResult | None = None


def simulated(spec: ScenarioSpec, scenario: Scenario, inputs: Inputs) -> RunResult | ClusterResult:
    """Simulate a scenario on the node or the nodes that its names say.

    Raises RunFailed for what does not fit, UsageError for parts that do not go together.
    """
    if spec.disaggregation is None:
        return simulate(scenario)
    return begun(spec, scenario, inputs).result()


def begun(spec: ScenarioSpec, scenario: Scenario, inputs: Inputs) -> ClusterRun:
    """Return the run of a scenario on the nodes that its names say; raises as `simulated`."""
    assert spec.disaggregation is not None
    return ClusterRun(scenario, load_cluster(spec.disaggregation, scenario, inputs.network(spec)))


def checked(result: RunResult | ClusterResult) -> Checked:
    """Return a result with its summary; raise RunFailed when it breaks a law."""
    if isinstance(result, ClusterResult):
        check_cluster(result)
        return Checked(result.run, summarise_cluster(result), result)
    check_conservation(result)
    return Checked(result, summarise(result))


def make_simulator() -> Callable[[ScenarioSpec], Outcome]:
    """Return a function that simulates scenarios and keeps their inputs loaded."""
    inputs = Inputs()

    def run(spec: ScenarioSpec) -> Outcome:
        scenario = inputs.scenario(spec)
        try:
            result = simulated(spec, scenario, inputs)
        except (RunFailed, UsageError) as error:
            return Outcome(refusal=str(error))
        return Outcome(checked(result).summary)

    return run
