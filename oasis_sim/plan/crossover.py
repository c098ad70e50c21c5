"""From which concurrency on offloading pays: throughput of a scheme against all KV in HBM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oasis_sim.engine.spec import CLOSED_LOOP, ScenarioSpec
from oasis_sim.plan.outcome import Outcome
from oasis_sim.report.chart import Bar
from oasis_sim.report.numbers import number
from oasis_sim.scheme import load_scheme

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def specs(spec: ScenarioSpec, context_tokens: int, output_tokens: int) -> list[ScenarioSpec]:
    """Return the closed loops of one scheme: so many requests at once, twice as many in all."""
    return [
        replace(
            spec,
            concurrency=at_once,
            load=replace(
                spec.load,
                kind=CLOSED_LOOP,
                requests=2 * at_once,
                context_tokens=context_tokens,
                output_tokens=output_tokens,
                rate_per_s=None,
                file=None,
                format=None,
            ),
        )
        for at_once in CONCURRENCIES
    ]


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
class Crossover:
    """Hold tokens per second by concurrency: of the scheme, and of all KV in HBM."""

    scheme: str
    offload: Mapping[int, float | None]
    dense: Mapping[int, float | None]

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

    def _pair(self, at: int) -> str:
        return f"{number(self.offload[at])} against {number(self.dense[at])} tokens/s at {at}"

    def bars(self) -> list[Bar]:
        """Return both throughputs by concurrency."""
        return [
            Bar(f"{at} {name}", values[at], number(values[at]))
            for at in self.offload
            for name, values in (("dense", self.dense), (self.scheme, self.offload))
        ]


def crossover(scheme: str, offload: Sequence[Outcome], dense: Sequence[Outcome]) -> Crossover:
    """Put the outcomes of two sets of closed loops side by side."""
    return Crossover(
        scheme,
        dict(zip(CONCURRENCIES, map(throughput, offload), strict=True)),
        dict(zip(CONCURRENCIES, map(throughput, dense), strict=True)),
    )
