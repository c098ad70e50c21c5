"""The smallest fleet of one card under one scheme that meets the targets at the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from oasis_sim.engine.spec import FILE, POISSON, ScenarioSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.plan.fleet import STAYS_PER_SPAN, Answer, Fewer, Fleet, Job, shortfall
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.nodes import cheapest, fewer_of
from oasis_sim.plan.probe import Probe, mean_output_tokens, requests_per_s, with_nodes
from oasis_sim.plan.prober import Prober, Tally
from oasis_sim.plan.search import smallest
from oasis_sim.report.numbers import counted

TENSOR_PARALLEL = (1, 2, 4, 8)
MOST_REQUESTS = 4_000


def make_planner() -> Callable[[Job], Answer]:
    """Return a function that answers jobs and keeps their inputs loaded."""
    inputs = Inputs()

    def answer(job: Job) -> Answer:
        return find_fleet(job, inputs)

    return answer


def find_fleet(job: Job, inputs: Inputs, tally: Tally | None = None) -> Answer:
    """Try each tensor parallelism, smallest first; keep the fleet with the fewest GPUs."""
    tally = tally or Tally()
    best: Fleet | None = None
    tried: dict[str, list[int]] = {}
    least = 1 if job.bounds is None else job.bounds.least
    for tp in job.tensor_parallel:
        most = (job.most_gpus if best is None else best.gpus - 1) // tp
        if most < least:
            if not tried:
                tried[f"takes more than {counted(job.most_gpus, 'GPU')}"] = [tp]
            break
        # A smaller fleet of larger replicas has to be close below the best one so far, if any is.
        start = None if best is None else most
        found = _with_tp(replace(job, spec=replace(job.spec, tp=tp)), most, inputs, start, tally)
        if isinstance(found, Fleet):
            best = found
            ran = f" ({counted(found.simulations, 'simulation')})" if job.bounds else ""
            found = f"{found.bracket_words()}{ran}"
        tried.setdefault(found, []).append(tp)
    went_how = tuple(f"tp {_sizes(sizes)}: {went}" for went, sizes in tried.items())
    return Answer(job, best, went_how, tally.under_load > 0)


def _sizes(sizes: list[int]) -> str:
    """Return the sizes that went the same way: `1, 2 and 4`."""
    *others, last = map(str, sizes)
    return f"{', '.join(others)} and {last}" if others else last


def _with_tp(job: Job, most: int, inputs: Inputs, start: int | None, tally: Tally) -> Fleet | str:
    """Return the smallest fleet of up to `most` replicas or nodes, or what is missing in words.

    The search for replicas begins at `start`, or at those that prefill alone keeps busy; that for
    decode nodes at `start`, or at one.
    """
    prober = Prober(job.spec, job.targets, inputs, tally=tally)
    try:
        if job.spec.load.kind == POISSON:
            alone = prober.alone()
            if not all(reading.met for reading in alone.readings):
                return f"missed even by a request alone: {shortfall(alone)}"
        if job.bounds is not None:
            return _on_nodes(job, prober, most, inputs, start or 1, tally)
        first = start or max(1, math.ceil(prober.busy_replicas))
        return _search(job, prober, most, inputs, first, tally)
    except (RunFailed, UsageError) as error:
        return str(error)


def _search(
    job: Job, prober: Prober, most: int, inputs: Inputs, start: int, tally: Tally
) -> Fleet | str:
    bracket = smallest(prober.is_enough, most, start)
    simulations = prober.simulations
    while bracket.enough is not None:
        longer = _longer(job, prober.spec, prober.at(bracket.enough))
        if longer is None:
            break
        prober = Prober(longer, job.targets, inputs, tally=tally)
        bracket = smallest(prober.is_enough, most, start=bracket.enough)
        simulations += prober.simulations
    if bracket.enough is None:
        return f"missed with {most * job.spec.tp} GPUs: {shortfall(prober.at(most))}"
    larger = bracket.enough + 1
    larger_fails = job.spec.load.kind == FILE and larger <= most and not prober.is_enough(larger)
    fails = bracket.fails
    fewer = (Fewer("replica", str(fails), prober.at(fails)),) if fails else ()
    found = _fleet(job, prober.spec, prober.at(bracket.enough), fewer, inputs)
    return replace(
        found, replicas=bracket.enough, larger_fails=larger_fails, simulations=simulations
    )


def _on_nodes(
    job: Job, prober: Prober, most: int, inputs: Inputs, decode: int, tally: Tally
) -> Fleet | str:
    """Return the fewest prefill and decode nodes, up to `most` together.

    The search begins at `decode` nodes.
    """
    assert job.bounds is not None
    simulations, start = 0, (1, decode)
    while True:
        pair = cheapest(prober, job.bounds, most, start)
        simulations += prober.simulations
        if isinstance(pair, str):
            return f"{pair} ({counted(simulations, 'simulation')})"
        longer = _longer(job, prober.spec, prober.on_nodes(*pair))
        if longer is None:
            break
        prober = Prober(longer, job.targets, inputs, tally=tally)
        start = (pair[0], max(pair[1], decode))
    fewer = fewer_of(prober, job.bounds, pair)
    found = _fleet(job, with_nodes(prober.spec, *pair), prober.on_nodes(*pair), fewer, inputs)
    return replace(found, simulations=simulations)


def _fleet(
    job: Job, spec: ScenarioSpec, meets: Probe, fewer: tuple[Fewer, ...], inputs: Inputs
) -> Fleet:
    """Return the fleet of a scenario as one replica; `spec` carries the whole load."""
    scenario = inputs.scenario(spec)
    tokens_per_request = mean_output_tokens(scenario.workload)
    return Fleet(
        spec=spec,
        replicas=1,
        meets=meets,
        fewer=fewer,
        output_tokens_per_s=tokens_per_request * requests_per_s(spec, scenario.workload),
        simulations=0,
        profile_origin=scenario.profile.origin,
        gpu_power_w=scenario.profile.gpu.power_w,
        words=job.words,
    )


def _longer(job: Job, spec: ScenarioSpec, probe: Probe) -> ScenarioSpec | None:
    """Return the scenario with as many requests as a steady load needs, None when it has them."""
    now = spec.load.requests
    if job.fixed_requests or spec.load.kind != POISSON or now is None or now >= MOST_REQUESTS:
        return None
    if not probe.span_s or probe.span_s >= STAYS_PER_SPAN * probe.e2e_s:
        return None
    needed = math.ceil(1.1 * now * STAYS_PER_SPAN * probe.e2e_s / probe.span_s)
    return replace(spec, load=replace(spec.load, requests=min(needed, MOST_REQUESTS)))
