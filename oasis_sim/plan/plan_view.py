"""A plan as rows and sentences: the recommendation, its neighbours, what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oasis_sim.engine.spec import POISSON
from oasis_sim.metrics.distribution import SAMPLES_FOR_P99
from oasis_sim.plan.binding import binding
from oasis_sim.plan.crossover import Crossover, throughputs
from oasis_sim.plan.fleet import Answer, Fewer, Fleet, Job
from oasis_sim.plan.needs import needs
from oasis_sim.plan.prices import Prices
from oasis_sim.plan.ranking import in_order, is_by_cost, tie_sentence, tied
from oasis_sim.plan.repeat import run_command
from oasis_sim.plan.sensitivity import Finding, Reach
from oasis_sim.plan.slo import Reading
from oasis_sim.report.chart import Bar, draw
from oasis_sim.report.numbers import NOTHING, count, gibibytes, milliseconds, number, percent
from oasis_sim.report.page.plain_plot import plot

HEADER = (
    "hardware",
    "scheme",
    "GPUs",
    "replicas x tp",
    "bracket",
    "tightest target",
    "head-room",
    "batch",
    "PCIe",
    "HBM/GPU",
    "host/GPU",
    "cost/M tokens",
)
NODES_HEADER = {"replicas x tp": "P:D x tp", "bracket": "P:D tried", "batch": "batch of a node"}
"""Titles where prefill and decode have nodes of their own."""
ALTERNATIVES = 3


@dataclass(frozen=True)
class Asked:
    """Hold the command that repeats a plan, its options, and the inputs' fingerprints by card."""

    command: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Hold all answers, the user's prices, and what else was asked about the best fleet."""

    answers: tuple[Answer, ...]
    prices: Prices
    asked: Asked = field(default_factory=Asked)
    findings: tuple[Finding, ...] = ()
    reach: Reach | None = None
    crossovers: tuple[Crossover, ...] = ()

    def cost(self, fleet: Fleet) -> float | None:
        """Return the cost of a million output tokens of a fleet, None without a price."""
        rate = fleet.output_tokens_per_s
        return self.prices.per_million_tokens(fleet.spec.profile, fleet.gpus, rate)

    def ranked(self) -> list[Fleet]:
        """Return the fleets, best first, as `oasis_sim.plan.ranking` says."""
        fleets = [answer.fleet for answer in self.answers if answer.fleet is not None]
        return in_order(fleets, self.costs(fleets))

    def costs(self, fleets: Sequence[Fleet]) -> list[float | None]:
        """Return the cost of each fleet."""
        return [self.cost(fleet) for fleet in fleets]


def rows(plan: Plan) -> list[list[str]]:
    """Return the table: one row per card and scheme that can meet the targets."""
    nodes = any(fleet.spec.disaggregation for fleet in plan.ranked())
    found = [[NODES_HEADER.get(name, name) if nodes else name for name in HEADER]]
    for fleet in plan.ranked():
        probe, cost = fleet.meets, plan.cost(fleet)
        tiers = probe.summary["tiers"]
        batch = probe.summary["steps"]["running_batch"]["mean"]
        found.append(
            [
                fleet.spec.profile,
                fleet.spec.scheme.name,
                count(fleet.gpus),
                f"{fleet.size} x {fleet.spec.tp}",
                fleet.bracket_words(),
                reading(probe.tightest),
                percent(probe.tightest.head_room),
                number(batch),
                percent(probe.summary["links"]["pcie_h2d"]["utilisation"]),
                gibibytes(tiers["hbm"]["peak_bytes"]),
                gibibytes(tiers["host"]["peak_bytes"]),
                NOTHING if cost is None else f"{cost:.2f} {plan.prices.currency}",
            ]
        )
    return found


def reading(each: Reading) -> str:
    """Return what was reached of a target."""
    reached = milliseconds(each.value_ms)
    return f"{each.target.name} {reached} of {milliseconds(each.limit_ms)}"


def sentences(plan: Plan) -> list[str]:
    """Return the answer in words: what to take, why not less, and what cannot be had."""
    found = []
    ranked = plan.ranked()
    if ranked:
        found += recommendation(plan, ranked[0])
        found += [alternative(plan, ranked[0], other) for other in ranked[1 : 1 + ALTERNATIVES]]
    found += [
        f"{answer.job.spec.profile}, {answer.job.spec.scheme.name}: no fleet meets the targets; "
        f"{'; '.join(answer.tried)}"
        for answer in plan.answers
        if answer.fleet is None
    ]
    found += [f"what if: {finding.sentence(ranked[0].meets)}" for finding in plan.findings]
    if plan.reach is not None:
        found.append(f"how much more: {plan.reach.sentence()}")
    for each in plan.crossovers:
        spec = ranked[0].spec
        node = "one node that does both, " if spec.disaggregation else ""
        where = f"{node}{spec.profile}, tp {spec.tp}, requests at once in a closed loop"
        found.append(f"{where}, context {count(each.context_tokens)}: {each.sentence()}")
        found += [f"{where}: {each.border_sentence()}"] if each.borders else []
    return found + notes(plan)


def chart_lines(plan: Plan) -> list[str]:
    """Return the GPUs of each fleet, and throughput over concurrency where it was asked for."""
    fleets = [
        Bar(f"{fleet.spec.profile} {fleet.spec.scheme.name}", fleet.gpus, count(fleet.gpus))
        for fleet in plan.ranked()
    ]
    lines = ["", *draw("GPUs", fleets)] if len(fleets) > 1 else []
    return lines if not plan.crossovers else [*lines, "", *plot(throughputs(plan.crossovers))]


def name_of(fleet: Fleet) -> str:
    """Return a fleet in words."""
    gpus = "1 GPU" if fleet.gpus == 1 else f"{fleet.gpus:,} GPUs"
    return f"{gpus} {fleet.spec.profile} with {fleet.spec.scheme.name}"


def alternative(plan: Plan, best: Fleet, other: Fleet) -> str:
    """Return another fleet, and what it has more or less of than the best."""
    cost, room = plan.cost(other), other.meets.tightest
    parts = [f"head-room {percent(room.head_room)} in {room.target.name}"]
    if other.gpus != best.gpus:
        more = other.gpus - best.gpus
        parts.insert(0, f"{more:+,} {'GPU' if abs(more) == 1 else 'GPUs'}")
    if cost is not None:
        parts.append(f"{cost:.2f} {plan.prices.currency} per million output tokens")
    return f"alternative: {name_of(other)}: {', '.join(parts)}"


def recommendation(plan: Plan, fleet: Fleet) -> list[str]:
    """Return what to take, its head-room, what binds it, and how to look closer."""
    ranked = plan.ranked()
    costs = plan.costs(ranked)
    rule = "cheapest" if is_by_cost(costs) else "fewest GPUs"
    rule += ", tie" if tied(ranked, costs) else ""
    found = [
        f"recommended ({rule}): {name_of(fleet)}, {fleet.layout}; "
        + ", ".join(reading(each) for each in fleet.meets.readings)
    ]
    found += [_why_not(each) for each in fleet.fewer]
    found += [] if fleet.fewer else [f"what binds it: {binding(fleet.meets)}"]
    found += [searched(answer) for answer in plan.answers if answer.fleet is fleet]
    found += needs(fleet)
    whole = "one replica in full" if fleet.spec.disaggregation is None else "all nodes in full"
    found.append(f"{whole}: {run_command(fleet)}")
    return found


def _why_not(fewer: Fewer) -> str:
    """Return what one replica or node fewer misses, and what binds there."""
    if fewer.probe.failure:
        return fewer.sentence()
    return f"{fewer.sentence()}; what binds there: {binding(fewer.probe)}"


def searched(answer: Answer) -> str:
    """Say which sizes failed and which one was enough, by GPUs of a replica or node."""
    found, bounds = "; ".join(answer.tried), answer.job.bounds
    if bounds is None:
        return f"searched: {found} (replicas)"
    return f"searched {bounds.words()}: {found} (P:D)"


def notes(plan: Plan) -> list[str]:
    """Return what the numbers rest on."""
    fleets = plan.ranked()
    costs = plan.costs(fleets)
    equals = tied(fleets, costs)
    found = [tie_sentence(equals, is_by_cost(costs))] if equals else []
    if any(fleet.is_short for fleet in fleets):
        found.append(
            "requests arrived for less than five times their stay: percentiles are those of a "
            "load that still builds up; raise --requests, or give a longer file"
        )
    found += [few] if (few := few_samples(fleets)) else []
    found += [
        f"{fleet.spec.profile}, {fleet.spec.scheme.name}: {fleet.replicas + 1} replicas miss what "
        f"{fleet.replicas} meet, by chance of their shares of the file: too few requests to tell"
        for fleet in fleets
        if fleet.larger_fails
    ]
    if any(fleet.meets.summary["scenario"]["trace"]["origin"] == "synthetic" for fleet in fleets):
        found.append("the attention trace is synthetic: traffic of offloading schemes is modelled")
    sheets = {fleet.spec.profile for fleet in fleets if fleet.profile_origin == "datasheet"}
    if sheets:
        found.append(f"datasheet limits, engine not measured there: {', '.join(sorted(sheets))}")
    if plan.answers[0].job.bounds is None or any(each.simulated for each in plan.answers):
        found.append(_how_dealt_out(plan.answers[0].job))
    lacking = {a.job.spec.profile for a in plan.answers} - set(plan.prices.gpu_hour)
    if plan.prices.currency and lacking:
        found.append(f"no price for {', '.join(sorted(lacking))}: ranked by GPUs")
    planned = {answer.job.spec.profile for answer in plan.answers}
    found += plan.prices.unknown(planned)
    return found


def _how_dealt_out(job: Job) -> str:
    if job.bounds is not None:
        return (
            "all nodes were simulated together under the whole load: prefill by the least work in "
            "the queue, decode by the fewest tokens given so far"
        )
    shared = "random arrivals are dealt out at random"
    if job.spec.load.kind != POISSON:
        shared = "requests are dealt out in turn; the first replica was simulated"
    return f"replicas are alike and independent; {shared}"


def few_samples(fleets: Sequence[Fleet]) -> str | None:
    """Say which p99 rest on too few requests to build on, None where none does."""
    few = {
        (
            reading.target.name,
            fleet.meets.summary["latency"][f"{reading.target.metric}_ms"]["samples"],
        )
        for fleet in fleets
        for reading in fleet.meets.readings
        if reading.target.statistic == "p99"
    }
    short = sorted((samples, name) for name, samples in few if samples < SAMPLES_FOR_P99)
    if not short:
        return None
    samples, name = short[0]
    unit = fleets[0].unit
    of = "a replica" if unit == "replica" else "the whole load"
    return (
        f"{name} rests on as few as {samples:,} samples of {of} ({SAMPLES_FOR_P99} are "
        f"needed): a fleet may be off by a {unit}; ask for p95, or give more requests"
    )
