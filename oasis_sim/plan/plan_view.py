"""A plan as rows and sentences: the recommendation, its neighbours, what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oasis_sim.engine.spec import POISSON
from oasis_sim.metrics.distribution import SAMPLES_FOR_P99
from oasis_sim.plan.crossover import Crossover, throughputs
from oasis_sim.plan.needs import needs
from oasis_sim.plan.planner import Answer, Fleet, bracket_words, shortfall
from oasis_sim.plan.prices import Prices
from oasis_sim.plan.probe import Probe, share_of
from oasis_sim.plan.ranking import in_order, is_by_cost, tie_sentence, tied
from oasis_sim.plan.sensitivity import Finding, Reach
from oasis_sim.plan.slo import Reading
from oasis_sim.report.chart import Bar, draw
from oasis_sim.report.numbers import NOTHING, count, gibibytes, milliseconds, number, percent
from oasis_sim.report.page.plain_plot import plot
from oasis_sim.report.why import limits_of

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
    found = [list(HEADER)]
    for fleet in plan.ranked():
        probe, cost = fleet.meets, plan.cost(fleet)
        tiers = probe.summary["tiers"]
        batch = probe.summary["steps"]["running_batch"]["mean"]
        found.append(
            [
                fleet.spec.profile,
                fleet.spec.scheme.name,
                count(fleet.gpus),
                f"{fleet.replicas} x {fleet.spec.tp}",
                bracket_words(fleet.bracket),
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
        where = f"{spec.profile}, tp {spec.tp}, requests at once in a closed loop"
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
        parts.insert(0, f"{other.gpus - best.gpus:+,} GPUs")
    if cost is not None:
        parts.append(f"{cost:.2f} {plan.prices.currency} per million output tokens")
    return f"alternative: {name_of(other)}: {', '.join(parts)}"


def recommendation(plan: Plan, fleet: Fleet) -> list[str]:
    """Return what to take, its head-room, what binds it, and how to look closer."""
    ranked = plan.ranked()
    costs = plan.costs(ranked)
    rule = "cheapest" if is_by_cost(costs) else "fewest GPUs"
    rule += ", tie" if tied(ranked, costs) else ""
    replicas = "1 replica" if fleet.replicas == 1 else f"{fleet.replicas} replicas"
    found = [
        f"recommended ({rule}): {name_of(fleet)}, {replicas} of tp {fleet.spec.tp}; "
        + ", ".join(reading(each) for each in fleet.meets.readings)
    ]
    if fleet.fails is not None:
        found.append(
            f"one replica fewer misses: {shortfall(fleet.fails)}; "
            f"what binds there: {binding(fleet.fails)}"
        )
    else:
        found.append(f"what binds it: {binding(fleet.meets)}")
    found += [
        f"searched: {'; '.join(answer.tried)} (replicas)"
        for answer in plan.answers
        if answer.fleet is fleet
    ]
    found += needs(fleet)
    found.append(f"one replica in full: {run_command(fleet)}")
    return found


def binding(probe: Probe) -> str:
    """Return what holds a replica back: its batch where requests wait, else its steps."""
    limits = limits_of(probe.summary)
    waits = not probe.keeps_up or probe.tightest.target.metric == "ttft"
    if waits and limits["batch"] in ("hbm", "host") and _is_full(probe):
        return str(limits["batch_why"])
    return str(limits["time_why"])


def _is_full(probe: Probe) -> bool:
    """Tell whether a memory tier was filled to nine tenths."""
    tiers = probe.summary["tiers"]
    hbm, host = tiers["hbm"], tiers["host"]
    filled = hbm["peak_kv_bytes"] >= 0.9 * hbm["kv_pool_bytes"]
    return bool(filled or host["peak_bytes"] >= 0.9 * host["capacity_bytes"] > 0)


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
    shared = "random arrivals are dealt out at random"
    if fleets and fleets[0].spec.load.kind != POISSON:
        shared = "requests are dealt out in turn; the first replica was simulated"
    found.append(f"replicas are alike and independent; {shared}")
    lacking = {a.job.spec.profile for a in plan.answers} - set(plan.prices.gpu_hour)
    if plan.prices.currency and lacking:
        found.append(f"no price for {', '.join(sorted(lacking))}: ranked by GPUs")
    planned = {answer.job.spec.profile for answer in plan.answers}
    found += plan.prices.unknown(planned)
    return found


def few_samples(fleets: Sequence[Fleet]) -> str | None:
    """Say which p99 rest on too few requests of a replica to build on, None where none does."""
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
    return (
        f"{name} rests on as few as {samples:,} samples of a replica ({SAMPLES_FOR_P99} are "
        "needed): a fleet may be off by a replica; ask for p95, or give more requests"
    )


def run_command(fleet: Fleet) -> str:
    """Return the command that simulates one replica."""
    spec = share_of(fleet.spec, fleet.replicas)
    load = spec.load
    words = ["oasis-sim", "run", "--profile", spec.profile, "--model", spec.model, *fleet.words]
    words += ["--engine", spec.engine]
    if load.file is not None:
        words += ["--workload", load.file, "--workload-format", str(load.format)]
        words += ["--every", str(load.every)]
    else:
        words += ["--rate", repr(load.rate_per_s)]
        words += ["--context", str(load.context_tokens)]
        words += ["--output-tokens", str(load.output_tokens)]
    words += ["--tp", str(spec.tp), "--seed", str(spec.seed)]
    optional = {
        "--requests": load.requests,
        "--concurrency": spec.concurrency,
        "--host-memory": _size(spec.host_bytes),
        "--hbm-memory": _size(spec.hbm_bytes),
        "--pcie": spec.host_link,
    }
    for option, value in optional.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes} B"
