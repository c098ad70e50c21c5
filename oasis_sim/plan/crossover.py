"""Where offloading pays: throughput of a scheme against all KV in HBM, by batch and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from oasis_sim.engine.spec import CLOSED_LOOP, ScenarioSpec
from oasis_sim.plan.outcome import Outcome, make_simulator
from oasis_sim.plan.search import smallest
from oasis_sim.report.numbers import count, number
from oasis_sim.report.page.document import Axis, Curves, Line, Point
from oasis_sim.scheme import load_scheme

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT_FACTORS = (Fraction(1, 4), Fraction(1, 2), Fraction(2), Fraction(4))
"""Other contexts at which the border is looked for, as multiples of the load's mean."""


def loop(spec: ScenarioSpec, at_once: int, sizes: tuple[int, int]) -> ScenarioSpec:
    """Return a closed loop of so many requests at once, twice as many in all, of given sizes.

    It runs on one node, which prefills and decodes.
    """
    load = replace(
        spec.load,
        kind=CLOSED_LOOP,
        requests=2 * at_once,
        context_tokens=sizes[0],
        output_tokens=sizes[1],
        rate_per_s=None,
        file=None,
        format=None,
        every=1,
    )
    return replace(spec, concurrency=at_once, load=load, disaggregation=None)


def specs(spec: ScenarioSpec, sizes: tuple[int, int]) -> list[ScenarioSpec]:
    """Return the closed loops of one scheme."""
    return [loop(spec, at_once, sizes) for at_once in CONCURRENCIES]


def on_same_gpus(best: ScenarioSpec, spec: ScenarioSpec | None = None) -> ScenarioSpec:
    """Return `spec` on the GPUs per replica of the best fleet; without one, all KV in HBM."""
    if spec is not None:
        return replace(spec, tp=best.tp)
    return replace(best, scheme=load_scheme("dense"), drafter=None)


def throughput(outcome: Outcome) -> float | None:
    """Return output tokens per second of all GPUs of a replica, None where it does not fit."""
    if outcome.summary is None:
        return None
    value = outcome.summary["throughput"]["output_tokens_per_s"]
    return None if value is None else float(value)


@dataclass(frozen=True)
class Border:
    """Say from which concurrency on a scheme beats dense at a context.

    `loses_at` is the largest number of requests at once that was tested and loses (None: none),
    `pays_at` the smallest that wins (None: none up to 256).
    """

    scheme: str
    context_tokens: int
    loses_at: int | None
    pays_at: int | None

    def sentence(self) -> str:
        """Say it in words."""
        context = f"context {count(self.context_tokens)}"
        if self.pays_at is None:
            return f"{context}: never up to {CONCURRENCIES[-1]}"
        loses = "" if self.loses_at is None else f" ({self.loses_at} loses)"
        return f"{context}: from {self.pays_at}{loses}"


@dataclass(frozen=True)
class BorderJob:
    """Ask for the border of a scheme against dense, both on the same GPUs, at some sizes."""

    spec: ScenarioSpec
    dense: ScenarioSpec
    sizes: tuple[int, int]


def border_jobs(
    best: ScenarioSpec,
    schemes: Sequence[ScenarioSpec],
    sizes: tuple[int, int],
    longest: int,
) -> list[BorderJob]:
    """Return the borders to look for; contexts that the model was not made for are left out."""
    context, output = sizes
    lengths = {round(context * factor) for factor in CONTEXT_FACTORS}
    kept = sorted(length for length in lengths if 1 <= length <= longest - output)
    dense = on_same_gpus(best)
    return [
        BorderJob(on_same_gpus(best, spec), dense, (length, output))
        for spec in schemes
        for length in kept
    ]


def make_border_finder() -> Callable[[BorderJob], Border]:
    """Return a function that finds borders by bisection and keeps their inputs loaded."""
    run = make_simulator()

    def find(job: BorderJob) -> Border:
        def pays(place: int) -> bool:
            at_once = CONCURRENCIES[place - 1]
            rates = [throughput(run(loop(each, at_once, job.sizes))) for each in (spec, job.dense)]
            return (rates[0] or 0.0) > (rates[1] or 0.0)

        spec = job.spec
        bracket = smallest(pays, len(CONCURRENCIES), start=len(CONCURRENCIES) // 2)
        return Border(
            spec.scheme.name,
            job.sizes[0],
            CONCURRENCIES[bracket.fails - 1] if bracket.fails else None,
            None if bracket.enough is None else CONCURRENCIES[bracket.enough - 1],
        )

    return find


@dataclass(frozen=True)
class Crossover:
    """Hold tokens per second by concurrency, of the scheme and of all KV in HBM.

    `context_tokens` is the context of both, `borders` where the scheme pays at other contexts.
    """

    scheme: str
    offload: Mapping[int, float | None]
    dense: Mapping[int, float | None]
    context_tokens: int
    borders: tuple[Border, ...] = ()

    def ahead(self) -> list[int]:
        """Return the concurrencies at which the scheme is faster, or the only one that fits."""
        return [at for at in self.offload if (self.offload[at] or 0.0) > (self.dense[at] or 0.0)]

    def sentence(self) -> str:
        """Say where offloading pays and where it loses."""
        ahead, tested = self.ahead(), list(self.offload)
        if not ahead:
            return f"{self.scheme} never beats dense up to {tested[-1]} requests at once"
        first = ahead[0]
        where = f"from {first} requests at once on"
        if ahead != tested[tested.index(first) :]:
            where = f"at {', '.join(map(str, ahead))} requests at once"
        parts = [f"{self.scheme} beats dense {where}: {self._pair(ahead[-1])}"]
        before = tested.index(first) - 1
        if before >= 0:
            parts.append(f"below that it loses: {self._pair(tested[before])}")
        return "; ".join(parts)

    def border_sentence(self) -> str:
        """Say from how many requests at once on it pays at other contexts."""
        return f"{self.scheme} pays, by requests at once, at " + ", ".join(
            each.sentence() for each in self.borders
        )

    def _pair(self, at: int) -> str:
        return f"{number(self.offload[at])} against {number(self.dense[at])} tokens/s at {at}"


def throughputs(crossovers: Sequence[Crossover]) -> Curves:
    """Return the throughput of dense and of each scheme over requests at once."""
    rates = {"dense": crossovers[0].dense, **{each.scheme: each.offload for each in crossovers}}
    lines = tuple(
        Line(name, tuple(Point(at, value) for at, value in each.items() if value is not None))
        for name, each in rates.items()
    )
    at_once = Axis("requests at once", log=True)
    return Curves(at_once, Axis("output tokens/s of a replica"), lines)


def crossover(
    scheme: str,
    offload: Sequence[Outcome],
    dense: Sequence[Outcome],
    context_tokens: int,
    borders: Sequence[Border],
) -> Crossover:
    """Put the outcomes of two sets of closed loops side by side."""
    return Crossover(
        scheme,
        dict(zip(CONCURRENCIES, map(throughput, offload), strict=True)),
        dict(zip(CONCURRENCIES, map(throughput, dense), strict=True)),
        context_tokens,
        tuple(each for each in borders if each.scheme == scheme),
    )
