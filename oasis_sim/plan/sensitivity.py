"""What the answer hangs on: the same fleet asked again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import POISSON, ScenarioSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.hardware import Link
from oasis_sim.hardware.load import on_link
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.planner import Fleet
from oasis_sim.plan.probe import Prober
from oasis_sim.plan.search import Bracket, smallest
from oasis_sim.plan.slo import Target

MOST_TIMES = 8
"""A change that needs more than this many times the replicas is only said to need more."""

RATE, CONTEXT, LINK, HOST = "rate", "context", "link", "host"
TITLES = {
    RATE: "the rate half as high again",
    CONTEXT: "contexts twice as long",
    LINK: "the host link half as fast",
    HOST: "half the host memory",
}


@dataclass(frozen=True)
class Question:
    """Ask for the replicas that a fleet needs when one thing is different."""

    kind: str
    spec: ScenarioSpec
    targets: tuple[Target, ...]
    replicas: int


@dataclass(frozen=True)
class Finding:
    """Hold the answer to a question; `refusal` says why nothing fits."""

    question: Question
    bracket: Bracket | None
    refusal: str = ""

    def sentence(self) -> str:
        """Say how many GPUs the change calls for."""
        title, had = TITLES[self.question.kind], self.question.replicas
        tp = self.question.spec.tp
        if self.bracket is None:
            return f"with {title}: nothing fits; {self.refusal}"
        if self.bracket.enough is None:
            return f"with {title}: more than {self.bracket.fails * tp} GPUs, if any number"
        gpus, before = self.bracket.enough * tp, had * tp
        change = "as before" if gpus == before else f"{gpus - before:+d}"
        return f"with {title}: {gpus} GPUs ({change})"


def questions(fleet: Fleet, targets: tuple[Target, ...]) -> list[Question]:
    """Return what is worth asking about a fleet: what its scheme and load depend on."""
    kinds = [RATE, CONTEXT] if fleet.spec.load.kind == POISSON else []
    kinds += [LINK, HOST] if fleet.spec.scheme.offload else []
    return [Question(kind, fleet.spec, targets, fleet.replicas) for kind in kinds]


def make_asker() -> Callable[[Question], Finding]:
    """Return a function that answers questions and keeps their inputs loaded."""
    inputs = Inputs()

    def ask(question: Question) -> Finding:
        prober = Prober(_changed_spec(question, inputs), question.targets, inputs)
        if question.kind == LINK:
            prober = Prober(question.spec, question.targets, inputs, with_slow_link)
        most = MOST_TIMES * question.replicas
        try:
            return Finding(question, smallest(prober.is_enough, most, question.replicas))
        except (RunFailed, UsageError) as error:
            return Finding(question, None, str(error))

    return ask


def _changed_spec(question: Question, inputs: Inputs) -> ScenarioSpec:
    spec, load = question.spec, question.spec.load
    if question.kind == RATE and load.rate_per_s is not None:
        return replace(spec, load=replace(load, rate_per_s=1.5 * load.rate_per_s))
    if question.kind == CONTEXT and load.context_tokens is not None:
        return replace(spec, load=replace(load, context_tokens=2 * load.context_tokens))
    if question.kind == HOST:
        scenario = inputs.scenario(spec)
        whole = spec.host_bytes
        whole = scenario.profile.host.kv_bytes if whole is None else whole
        return replace(spec, host_bytes=whole // 2)
    return spec


def with_slow_link(scenario: Scenario) -> Scenario:
    """Return the scenario with half the bandwidth to host memory, in both directions."""
    profile, link = scenario.profile, scenario.profile.pcie
    half = Link(link.bytes_per_s / 2, link.usable_bytes_per_s / 2, link.latency_ps)
    engines = {name: on_link(costs, 0.5) for name, costs in profile.engines.items()}
    return replace(scenario, profile=replace(profile, pcie=half, engines=engines))
