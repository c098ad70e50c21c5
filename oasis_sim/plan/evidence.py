"""What a report of a plan shows besides the fleets: curves, fetch ratios, a step's timeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oasis_sim.cluster import ClusterResult
from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.plan.crossover import CONCURRENCIES, on_same_gpus, specs
from oasis_sim.plan.fleet import Fleet
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.outcome import Outcome, simulated
from oasis_sim.plan.plan_view import Plan
from oasis_sim.plan.probe import mean_sizes, share_of
from oasis_sim.report.operating import operating_point
from oasis_sim.report.step_window import step_window
from oasis_sim.report.timeline import write_timeline

RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
Run = Callable[[Sequence[ScenarioSpec]], list[Outcome]]


@dataclass(frozen=True)
class Evidence:
    """Hold what was simulated on the recommended card, closed loops of mean sizes throughout.

    All but the windows is of one node that prefills and decodes.

    `curves`: each scheme by requests at once. `ratios`: one scheme by fetch ratio, at
    `ratio_concurrency` requests at once. `windows`: some layers of a step, by scheme.
    """

    context_tokens: int
    output_tokens: int
    curves: Mapping[str, Mapping[int, Outcome]]
    ratio_scheme: str | None = None
    ratio_concurrency: int = 0
    ratios: Mapping[float, Outcome] = field(default_factory=dict)
    windows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "context_tokens": self.context_tokens,
            "output_tokens": self.output_tokens,
            "curves": [
                {"scheme": name, "points": _points("concurrency", points)}
                for name, points in self.curves.items()
            ],
            "fetch_ratios": None
            if self.ratio_scheme is None
            else {
                "scheme": self.ratio_scheme,
                "concurrency": self.ratio_concurrency,
                "points": _points("fetch_ratio", self.ratios),
            },
            "step_timelines": [{"scheme": name, **each} for name, each in self.windows.items()],
        }


def _points(name: str, points: Mapping[Any, Outcome]) -> list[dict[str, Any]]:
    return [
        {name: at, "refusal": each.refusal}
        | ({} if each.summary is None else operating_point(each.summary))
        for at, each in points.items()
    ]


def curves_of(
    best: ScenarioSpec, schemes: Sequence[ScenarioSpec], sizes: tuple[int, int], run: Run
) -> dict[str, dict[int, Outcome]]:
    """Return dense and each scheme on the GPUs of the best replica, by requests at once."""
    loops = _loops(best, schemes, sizes)
    outcomes = iter(run([spec for loop in loops.values() for spec in loop]))
    return {name: _take(outcomes, CONCURRENCIES) for name in loops}


def _loops(
    best: ScenarioSpec, schemes: Sequence[ScenarioSpec], sizes: tuple[int, int]
) -> dict[str, list[ScenarioSpec]]:
    asked = [on_same_gpus(best), *(on_same_gpus(best, spec) for spec in schemes)]
    return {spec.scheme.name: specs(spec, sizes) for spec in asked}


def gather(plan: Plan, run: Run) -> Evidence | None:
    """Simulate what a report shows of the recommended card; None where no fleet was found."""
    ranked = plan.ranked()
    if not ranked:
        return None
    best, inputs = ranked[0].spec, Inputs()
    sizes = mean_sizes(inputs.scenario(best).workload)
    specs_here = [a.job.spec for a in plan.answers if a.job.spec.profile == best.profile]
    loops = _loops(best, specs_here, sizes)
    capped = next((each for each in ranked if _is_capped(each, best)), None)
    varied = [] if capped is None else _at_ratios(capped, loops[capped.spec.scheme.name])
    outcomes = iter(run([*(spec for loop in loops.values() for spec in loop), *varied]))
    return Evidence(
        *sizes,
        {name: _take(outcomes, CONCURRENCIES) for name in loops},
        None if capped is None else capped.spec.scheme.name,
        int(varied[0].concurrency or 0) if varied else 0,
        _take(outcomes, RATIOS[: len(varied)]),
        _windows(ranked, inputs),
    )


def _take(outcomes: Iterator[Outcome], at: Sequence[Any]) -> dict[Any, Outcome]:
    return {each: next(outcomes) for each in at}


def _is_capped(fleet: Fleet, best: ScenarioSpec) -> bool:
    scheme = fleet.spec.scheme
    return fleet.spec.profile == best.profile and scheme.fetch_ratio is not None


def _at_ratios(fleet: Fleet, loop: Sequence[ScenarioSpec]) -> list[ScenarioSpec]:
    """Return the closed loop that holds the batch of a fleet, with every fetch ratio."""
    batch = fleet.meets.summary["steps"]["running_batch"]["mean"] or 1.0
    spec = next((each for each in loop if (each.concurrency or 0) >= batch), loop[-1])
    return [replace(spec, scheme=replace(spec.scheme, fetch_ratio=ratio)) for ratio in RATIOS]


def _windows(ranked: Sequence[Fleet], inputs: Inputs) -> dict[str, Mapping[str, Any]]:
    """Return a step of the recommended fleet, and of the best one that offloads on its card."""
    card = [fleet for fleet in ranked if fleet.spec.profile == ranked[0].spec.profile]
    offloading = [fleet for fleet in card if fleet.spec.scheme.offload]
    found: dict[str, Mapping[str, Any]] = {}
    for fleet in {each.spec.scheme.name: each for each in (*card[:1], *offloading[:1])}.values():
        spec = share_of(fleet.spec, fleet.replicas)
        result = simulated(spec, inputs.scenario(spec), inputs)
        run = result.first_node() if isinstance(result, ClusterResult) else result
        window = step_window(json.loads(write_timeline(run)))
        if window is not None:
            found[fleet.spec.scheme.name] = window
    return found
