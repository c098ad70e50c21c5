"""What `oasis-sim plan` asks beyond the fleet: what the answer hangs on, where offloading pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from oasis_sim.cli.terminal import points_done

if TYPE_CHECKING:
    from oasis_sim.plan.crossover import Crossover
    from oasis_sim.plan.evidence import Evidence, Run
    from oasis_sim.plan.outcome import Outcome
    from oasis_sim.plan.plan_view import Plan

J = TypeVar("J")
R = TypeVar("R")


def in_order(
    make_handler: Callable[[], Callable[[J], R]],
    jobs: Sequence[J],
    values: Mapping[str, Any],
    title: str,
) -> list[R]:
    """Do jobs on all cores with progress; return their results in the order of the jobs."""
    from oasis_sim.plan.pool import run_jobs, usable_cores

    found: dict[int, R] = {}
    results = run_jobs(make_handler, jobs, values["workers"] or usable_cores())
    with closing(results), points_done(title, values["quiet"]) as progress:
        for index, result in results:
            found[index] = result
            if progress is not None:
                progress(len(found), len(jobs))
    return [found[index] for index in range(len(jobs))]


def asked_about(plan: Plan, values: Mapping[str, Any]) -> Plan:
    """Return the plan with what its recommended fleet hangs on: one thing changed at a time."""
    from oasis_sim.plan.sensitivity import REACH, Finding, Reach, make_asker, questions

    ranked = plan.ranked()
    if not ranked:
        return plan
    asked = questions(ranked[0], plan.answers[0].job.targets)
    if not values["sensitivity"]:  # a report has bars of changes; the reach takes as long again
        asked = [each for each in asked if each.kind != REACH]
    found = in_order(make_asker, asked, values, "asking what if")
    findings = tuple(each for each in found if isinstance(each, Finding))
    reach = next((each for each in found if isinstance(each, Reach)), None)
    return replace(plan, findings=findings, reach=reach)


def crossovers_of(
    plan: Plan, evidence: Evidence | None, values: Mapping[str, Any]
) -> tuple[Crossover, ...]:
    """Compare every offloading scheme of the plan with dense on the recommended card.

    What a report has simulated already is taken from it; other contexts are looked at with
    `--where-offload-pays` only.
    """
    from oasis_sim.plan.crossover import border_jobs, crossover, make_border_finder
    from oasis_sim.plan.evidence import curves_of
    from oasis_sim.plan.inputs import Inputs
    from oasis_sim.plan.probe import mean_sizes

    ranked = plan.ranked()
    if not ranked:
        return ()
    best = ranked[0].spec
    schemes = [
        answer.job.spec
        for answer in plan.answers
        if answer.job.spec.profile == best.profile and answer.job.spec.scheme.offload
    ]
    if not schemes:
        return ()
    scenario = Inputs().scenario(best)
    sizes = mean_sizes(scenario.workload)
    curves: Mapping[str, Mapping[int, Outcome]]
    if evidence is None:
        curves = curves_of(best, schemes, sizes, _runner("comparing with dense", values))
    else:
        curves = evidence.curves
    jobs = border_jobs(best, schemes, sizes, scenario.model.max_context)
    asked = jobs if values["where_offload_pays"] else []
    borders = in_order(make_border_finder, asked, values, "comparing at other contexts")
    names = [spec.scheme.name for spec in schemes]
    dense = [*curves["dense"].values()]
    return tuple(
        crossover(name, [*curves[name].values()], dense, sizes[0], borders) for name in names
    )


def evidence_of(plan: Plan, values: Mapping[str, Any]) -> Evidence | None:
    """Simulate what a report shows of the recommended card."""
    from oasis_sim.plan.evidence import gather

    return gather(plan, _runner("drawing curves", values))


def _runner(title: str, values: Mapping[str, Any]) -> Run:
    """Return a function that simulates scenarios on all cores, in their order."""
    from oasis_sim.plan.outcome import make_simulator

    return lambda specs: in_order(make_simulator, specs, values, title)
