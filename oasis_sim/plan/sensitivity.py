"""What the answer hangs on: the same fleet asked again with one thing changed, and its reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.plan.changes import (
    POINTS_WORSE,
    with_half_the_host,
    with_long_contexts,
    with_rate,
    with_slow_link,
    with_worse_prediction,
)
from oasis_sim.plan.fleet import Bounds, Fleet, gpus_of, nodes_of, shortfall
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.nodes import cheapest
from oasis_sim.plan.probe import Probe, with_nodes
from oasis_sim.plan.prober import Prober
from oasis_sim.plan.search import smallest
from oasis_sim.plan.slo import Target
from oasis_sim.report.numbers import milliseconds, number, percent

MOST_TIMES = 8
"""A change that needs more than this many times the fleet is only said to need more."""
REACH_STEP = Fraction(1, 50)
MOST_REACH_STEPS = 500
"""How far the load is raised to find where the fleet fails: in steps of 2 %, up to eleven times."""

RATE, CONTEXT, PREDICTION, LINK, HOST, REACH = (
    "rate",
    "context",
    "prediction",
    "link",
    "host",
    "reach",
)
TITLES = {
    RATE: "the rate half as high again",
    CONTEXT: "contexts twice as long",
    PREDICTION: f"prediction {POINTS_WORSE} points worse",
    LINK: "the host link half as fast",
    HOST: "half the host memory",
}
CHANGES: dict[str, Callable[[Scenario], Scenario]] = {
    CONTEXT: with_long_contexts,
    PREDICTION: with_worse_prediction,
    LINK: with_slow_link,
    HOST: with_half_the_host,
}


@dataclass(frozen=True)
class Question:
    """Ask for the replicas, or nodes, that a fleet needs when one thing is different."""

    kind: str
    spec: ScenarioSpec
    targets: tuple[Target, ...]
    replicas: int

    @property
    def gpus(self) -> int:
        """Return the GPUs of the fleet as it is."""
        return gpus_of(self.spec, self.replicas)


@dataclass(frozen=True)
class Finding:
    """Hold the answer to a question.

    `gpus` are what the change calls for (None: none were found), as `nodes` P:D where prefill has
    its own; `same` is the fleet as it was under the change; `refusal` says why nothing fits, or
    what the largest fleet asked misses.
    """

    question: Question
    gpus: int | None = None
    same: Probe | None = None
    nodes: str = ""
    refusal: str = ""

    def sentence(self, before: Probe) -> str:
        """Say how many GPUs the change calls for, and what the fleet as it is would reach."""
        title, had = TITLES[self.question.kind], self.question.gpus
        if self.same is None:
            return f"with {title}: nothing fits; {self.refusal}"
        if self.gpus is None:
            return (
                f"with {title}: more than {MOST_TIMES * had:,} GPUs, if any number; {self.refusal}"
            )
        change = "as before" if self.gpus == had else f"{self.gpus - had:+d}"
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus:,} GPUs"
        gpus += f", {self.nodes}" if self.nodes else ""
        tightest = self.same.tightest
        as_is = f"{tightest.target.name} of the same fleet {milliseconds(tightest.value_ms)}"
        parts = [f"with {title}: {gpus} ({change})", as_is]
        if self.question.kind == PREDICTION:
            parts.append(_quality(before, self.same))
        return "; ".join(parts)


def _quality(before: Probe, after: Probe) -> str:
    """Say what a change does to the proxies of quality."""
    pairs = [
        (each.summary["quality"]["topk_agreement"], each.summary["quality"]["attention_mass"])
        for each in (before, after)
    ]
    (old, old_mass), (new, new_mass) = pairs
    return (
        f"top-K agreement {percent(old)} -> {percent(new)}, attention mass "
        f"{percent(old_mass['mean'])} -> {percent(new_mass['mean'])} (proxies)"
    )


@dataclass(frozen=True)
class Reach:
    """Hold how much of the load a fleet bears, as factors of the rate that it was planned for.

    `meets` is the last step that meets the targets, `fails` the first that does not (None: none).
    """

    question: Question
    meets: Fraction
    fails: Fraction | None
    meets_probe: Probe
    fails_probe: Probe | None

    def sentence(self) -> str:
        """Say up to which load the fleet meets the targets, and what breaks first."""
        batch = _batch(self.meets_probe)
        if self.fails is None or self.fails_probe is None:
            return f"the fleet bears more than {number(float(self.meets))} times the rate"
        return (
            f"the fleet bears {number(float(self.meets))} times the rate ({batch} requests at once "
            f"on average), not {number(float(self.fails))} times ({_batch(self.fails_probe)}): "
            f"{shortfall(self.fails_probe)}"
        )


def _batch(probe: Probe) -> str:
    return number(probe.summary["steps"]["running_batch"]["mean"])


def questions(fleet: Fleet, targets: tuple[Target, ...]) -> list[Question]:
    """Return what is worth asking about a fleet: what its scheme and load depend on."""
    scheme = fleet.spec.scheme
    kinds = [RATE, CONTEXT]
    if scheme.offload:
        kinds += [PREDICTION] if scheme.predictor == "draft" else []
        kinds += [LINK, HOST]
    return [Question(kind, fleet.spec, targets, fleet.replicas) for kind in (*kinds, REACH)]


def make_asker() -> Callable[[Question], Finding | Reach]:
    """Return a function that answers questions and keeps their inputs loaded."""
    inputs = Inputs()

    def ask(question: Question) -> Finding | Reach:
        if question.kind == REACH:
            return reach_of(question, inputs)
        return finding_of(question, inputs)

    return ask


def finding_of(question: Question, inputs: Inputs) -> Finding:
    """Search the fleet again with one thing changed."""
    if question.kind == RATE:
        prober = prober_at(question, Fraction(3, 2), inputs)
    else:
        prober = Prober(question.spec, question.targets, inputs, CHANGES[question.kind])
    try:
        enough = _enough(question, prober)
        same = prober.at(question.replicas)
    except (RunFailed, UsageError) as error:
        return Finding(question, refusal=str(error))
    if isinstance(enough, str):
        return Finding(question, same=same, refusal=enough)
    spec, replicas = enough
    return Finding(question, gpus_of(spec, replicas), same, nodes_of(spec))


def _enough(question: Question, prober: Prober) -> tuple[ScenarioSpec, int] | str:
    """Return the scenario and replicas that meet the targets, up to some times the fleet.

    Where none do, say what is missing.
    """
    spec, had, nodes = question.spec, question.replicas, question.spec.disaggregation
    if nodes is None:
        replicas = smallest(prober.is_enough, MOST_TIMES * had, had).enough
        if replicas is None:
            return f"missed with that many: {shortfall(prober.at(MOST_TIMES * had))}"
        return spec, replicas
    # Every change asks for more, so no fewer nodes of either kind are looked at.
    ends = [(each, MOST_TIMES * each) for each in (nodes.prefill, nodes.decode)]
    most = MOST_TIMES * (nodes.prefill + nodes.decode)
    pair = cheapest(prober, Bounds(*ends), most)
    return pair if isinstance(pair, str) else (with_nodes(spec, *pair), 1)


def reach_of(question: Question, inputs: Inputs) -> Reach:
    """Raise the load in steps of 2 % until the same fleet fails."""
    known: dict[int, Probe] = {}

    def probe(step: int) -> Probe:
        if step not in known:
            prober = prober_at(question, 1 + step * REACH_STEP, inputs)
            known[step] = prober.at(question.replicas)
        return known[step]

    bracket = smallest(lambda step: not probe(step).met, MOST_REACH_STEPS)
    fails = None if bracket.enough is None else 1 + bracket.enough * REACH_STEP
    return Reach(
        question,
        meets=1 + bracket.fails * REACH_STEP,
        fails=fails,
        meets_probe=probe(bracket.fails),
        fails_probe=None if bracket.enough is None else probe(bracket.enough),
    )


def prober_at(question: Question, factor: Fraction, inputs: Inputs) -> Prober:
    """Return the prober of a fleet at another rate: the same requests, closer together."""
    spec, rate = question.spec, question.spec.load.rate_per_s
    if rate is not None:
        faster = replace(spec, load=replace(spec.load, rate_per_s=rate * float(factor)))
        return Prober(faster, question.targets, inputs)
    return Prober(spec, question.targets, inputs, lambda scenario: with_rate(scenario, factor))
