"""From the options of `oasis-sim plan` to searches: one per card, scheme and varied part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from oasis_sim.cli.compare import for_scheme
from oasis_sim.cli.disaggregation import disaggregation_from, node_bounds
from oasis_sim.cli.options import SCHEME_PARTS, spec_from
from oasis_sim.cli.sweep_points import converted, scenario_parameters
from oasis_sim.errors import UsageError
from oasis_sim.fileio import printable

if TYPE_CHECKING:
    from oasis_sim.engine.spec import ScenarioSpec
    from oasis_sim.plan.fleet import Bounds, Job

FIRST_REQUESTS = 500
VARIED = (*SCHEME_PARTS, "predictor")
"""Options of `run` that say how a scheme works: what a plan may let take several values."""


def jobs_of(values: Mapping[str, Any]) -> list[Job]:
    """Return one job per card and scheme; raise a usage error for a load that is none."""
    from oasis_sim.plan.fleet import Job
    from oasis_sim.plan.planner import TENSOR_PARALLEL
    from oasis_sim.plan.slo import parse_slo

    if values["rate"] is None and values["workload"] is None:
        raise UsageError(
            "plan needs a load: --rate (with --context, --output-tokens) or --workload"
        )
    if values["steps"] is not None:
        raise UsageError("plan simulates requests to their end; leave --steps out")
    if values["gpu"] is not None and values["profile"] is not None:
        raise UsageError("--gpu and --profile name the same; give one")
    targets = parse_slo(",".join(values["slo"]))
    fixed = values["requests"] is not None or values["workload"] is not None
    sizes = TENSOR_PARALLEL if values["tp"] is None else (values["tp"],)
    cards = values["profile"] or "h100" if values["gpu"] is None else values["gpu"]
    bounds = bounds_of(values)
    jobs: dict[tuple[str, tuple[str, ...]], Job] = {}
    for card, scheme, varied in product(
        names_in(cards), names_in(values["scheme"]), variants(values)
    ):
        each = for_scheme({**values, **varied, "profile": card}, scheme)
        if not fixed:
            each["requests"] = FIRST_REQUESTS
        spec = with_nodes(named(spec_from(each), each, varied), each, bounds)
        words = words_of(each)
        # Options that mean nothing to a scheme (a fetch ratio where all KV stays) make one job.
        job = Job(spec, targets, values["most_gpus"], sizes, fixed, words, bounds)
        jobs.setdefault((card, words), job)
    return list(jobs.values())


def bounds_of(values: Mapping[str, Any]) -> Bounds | None:
    """Return how many prefill and decode nodes the plan may take; None on one node."""
    from oasis_sim.plan.fleet import Bounds

    text = values["disaggregated"]
    return None if text is None else Bounds(*node_bounds(text))


def with_nodes(
    spec: ScenarioSpec, values: Mapping[str, Any], bounds: Bounds | None
) -> ScenarioSpec:
    """Return a scenario on the fewest nodes of its bounds; each of its faults must hit there."""
    least = None if bounds is None else f"{bounds.prefill[0]}:{bounds.decode[0]}"
    options = {**values, "disaggregated": least, "workers": None}
    nodes = disaggregation_from(options, None, spec.scheme)
    if nodes is not None and bounds is not None:
        check_faults(nodes.faults, bounds)
    return replace(spec, disaggregation=nodes)


def check_faults(faults: tuple[str, ...], bounds: Bounds) -> None:
    """Raise UsageError unless each fault can hit the fewest nodes that the bounds allow."""
    from oasis_sim.cluster.faults import read_faults

    least, most = zip(bounds.prefill, bounds.decode, strict=True)
    read_faults(faults, *most)
    try:
        read_faults(faults, *least)
    except UsageError as error:
        raise UsageError(
            f"{error}; a plan's faults name nodes of the fewest allowed, {least[0]}:{least[1]} "
            "here: raise LOW of --disaggregated LOW..HIGH"
        ) from None


def variants(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the combinations of what `--vary` names, as values of the options.

    Raise UsageError for what is no part of a scheme, and for what is fixed or varied twice.
    """
    from oasis_sim.plan.grid import parse_vary, sort_values

    axes: dict[str, list[Any]] = {}
    for text in values["vary"]:
        name, texts = parse_vary(text)
        if name not in VARIED:
            raise UsageError(
                f"plan cannot vary {printable(name, 60)!r}; known: {', '.join(VARIED)}"
            )
        if name in axes or values[name] is not None:
            raise UsageError(f"{name} is given twice; put all its values into one --vary")
        option = scenario_parameters()[name]
        axes[name] = [converted(option, each) for each in sort_values(texts)]
    return [dict(zip(axes, found, strict=True)) for found in product(*axes.values())]


def named(spec: ScenarioSpec, values: Mapping[str, Any], varied: Mapping[str, Any]) -> ScenarioSpec:
    """Return the scenario with what was varied in the name of its scheme."""
    parts = [f"{name} {values[name]}" for name in varied if values[name] is not None]
    name = " ".join([spec.scheme.name, *parts])
    return replace(spec, scheme=replace(spec.scheme, name=name)) if parts else spec


def names_in(text: str) -> list[str]:
    """Return the names of a list with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def words_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of scheme and trace as a command line has them."""
    words = ["--scheme", values["scheme"]]
    for name in VARIED:
        if values[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(values[name])]
    for trace in values["trace"] or ():
        words += ["--trace", trace]
    return tuple(words)
