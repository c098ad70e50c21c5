"""The smallest fleet of one card under one scheme that meets the targets at the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from oasis_sim.engine.spec import FILE, POISSON, ScenarioSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.probe import Probe, Prober, mean_output_tokens, requests_per_s
from oasis_sim.plan.search import Bracket, smallest
from oasis_sim.plan.slo import Reading, Target
from oasis_sim.report.numbers import milliseconds, percent

TENSOR_PARALLEL = (1, 2, 4, 8)
MOST_REQUESTS = 4_000
STAYS_PER_SPAN = 5
"""Requests must arrive over this many mean stays, or the replica never sees its steady load."""


@dataclass(frozen=True)
class Job:
    """Ask for the smallest fleet: the scenario of the whole load, targets, sizes allowed.

    `words` are options that a command line needs besides those that the scenario names.
    """

    spec: ScenarioSpec
    targets: tuple[Target, ...]
    most_gpus: int
    tensor_parallel: tuple[int, ...]
    fixed_requests: bool
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fleet:
    """Hold a fleet that meets the targets and how it was found.

    `larger_fails`: with one replica more the targets are missed, because the share of a file that
    the simulated replica gets is another one; chance decides between the two.
    """

    spec: ScenarioSpec
    replicas: int
    bracket: Bracket
    meets: Probe
    fails: Probe | None
    output_tokens_per_s: float
    simulations: int
    profile_origin: str
    gpu_power_w: float | None = None
    larger_fails: bool = False
    words: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Return the GPUs of all replicas."""
        return self.replicas * self.spec.tp

    @property
    def is_short(self) -> bool:
        """Tell whether requests arrived for less time than a steady load takes to build up."""
        return self.meets.span_s < STAYS_PER_SPAN * self.meets.e2e_s


@dataclass(frozen=True)
class Answer:
    """Hold the fleet of one job, or why there is none; `tried` says how each tp went."""

    job: Job
    fleet: Fleet | None
    tried: tuple[str, ...] = ()


def make_planner() -> Callable[[Job], Answer]:
    """Return a function that answers jobs and keeps their inputs loaded."""
    inputs = Inputs()

    def answer(job: Job) -> Answer:
        return find_fleet(job, inputs)

    return answer


def find_fleet(job: Job, inputs: Inputs) -> Answer:
    """Try each tensor parallelism, smallest first; keep the fleet with the fewest GPUs."""
    best: Fleet | None = None
    tried: list[str] = []
    for tp in job.tensor_parallel:
        most = (job.most_gpus if best is None else best.gpus - 1) // tp
        if most < 1:
            break
        # A smaller fleet of larger replicas has to be close below the best one so far, if any is.
        start = None if best is None else most
        found = _with_tp(replace(job, spec=replace(job.spec, tp=tp)), most, inputs, start)
        if isinstance(found, Fleet):
            best = found
            tried.append(f"tp {tp}: {bracket_words(found.bracket)}")
        else:
            tried.append(f"tp {tp}: {found}")
    return Answer(job, best, tuple(tried))


def bracket_words(bracket: Bracket) -> str:
    """Return both ends of a bisection in words."""
    if bracket.enough is None:
        return f"{bracket.fails} fails"
    enough = f"{bracket.enough} meets"
    return f"{bracket.fails} fails, {enough}" if bracket.fails else enough


def _with_tp(job: Job, most: int, inputs: Inputs, start: int | None) -> Fleet | str:
    """Return the smallest fleet of up to `most` replicas, or what is missing in words.

    The search begins at `start` replicas, or at those that prefill alone keeps busy.
    """
    prober = Prober(job.spec, job.targets, inputs)
    try:
        if job.spec.load.kind == POISSON:
            alone = prober.alone()
            if not all(reading.met for reading in alone.readings):
                return f"missed even by a request alone: {shortfall(alone)}"
        first = start or max(1, math.ceil(prober.busy_replicas))
        return _search(job, prober, most, inputs, first)
    except (RunFailed, UsageError) as error:
        return str(error)


def _search(job: Job, prober: Prober, most: int, inputs: Inputs, start: int) -> Fleet | str:
    bracket = smallest(prober.is_enough, most, start)
    simulations = prober.simulations
    while bracket.enough is not None and not job.fixed_requests:
        longer = _longer(prober.spec, prober.at(bracket.enough))
        if longer is None:
            break
        prober = Prober(longer, job.targets, inputs)
        bracket = smallest(prober.is_enough, most, start=bracket.enough)
        simulations += prober.simulations
    if bracket.enough is None:
        return f"missed with {most * job.spec.tp} GPUs: {shortfall(prober.at(most))}"
    scenario = inputs.scenario(prober.spec)
    whole = scenario.workload
    larger = bracket.enough + 1
    larger_fails = job.spec.load.kind == FILE and larger <= most and not prober.is_enough(larger)
    return Fleet(
        spec=prober.spec,
        replicas=bracket.enough,
        bracket=bracket,
        meets=prober.at(bracket.enough),
        fails=prober.at(bracket.fails) if bracket.fails else None,
        output_tokens_per_s=mean_output_tokens(whole) * requests_per_s(prober.spec, whole),
        simulations=simulations,
        profile_origin=scenario.profile.origin,
        gpu_power_w=scenario.profile.gpu.power_w,
        larger_fails=larger_fails,
        words=job.words,
    )


def _longer(spec: ScenarioSpec, probe: Probe) -> ScenarioSpec | None:
    """Return the scenario with as many requests as a steady load needs, None when it has them."""
    now = spec.load.requests
    if spec.load.kind != POISSON or now is None or now >= MOST_REQUESTS or not probe.span_s:
        return None
    needed = math.ceil(1.1 * now * STAYS_PER_SPAN * probe.e2e_s / probe.span_s)
    if probe.span_s >= STAYS_PER_SPAN * probe.e2e_s:
        return None
    return replace(spec, load=replace(spec.load, requests=min(needed, MOST_REQUESTS)))


def shortfall(probe: Probe) -> str:
    """Say which targets are missed and by how much, or that the queue grows."""
    parts = [missed(reading) for reading in probe.readings if not reading.met]
    if probe.refused:
        parts.append(f"{probe.refused} requests do not fit")
    elif probe.prefill_share > 1:
        parts.append(f"prefill alone takes {percent(probe.prefill_share)} of the time")
    elif not probe.keeps_up:
        parts.append(f"{percent(probe.waiting_share)} of the requests still wait at the end")
    return "; ".join(parts)


def missed(reading: Reading) -> str:
    """Say by how much a target is missed."""
    reached = "never measured" if reading.value_ms is None else milliseconds(reading.value_ms)
    return f"{reading.target.name} {reached}, target {milliseconds(reading.limit_ms)}"
