"""Service-level objectives: latency targets, and how a run stands against them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.result import RequestLog, RunResult
from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import printable
from oasis_sim.metrics.distribution import percentile
from oasis_sim.metrics.latency import since_arrival_ps, time_per_output_token_ps
from oasis_sim.units import PS_PER_MS, parse_time

METRICS = ("ttft", "tpot", "itl", "e2e")
_TARGET = re.compile(r"(ttft|tpot|itl|e2e)_(mean|p[1-9][0-9]?)\s*=\s*(.+)")


@dataclass(frozen=True)
class Target:
    """Ask that a statistic of a latency be at most `limit_ps`: `ttft_p95=2s`."""

    metric: str
    statistic: str
    limit_ps: int

    @property
    def name(self) -> str:
        """Return the name that vLLM's benchmarks give it."""
        return f"{self.metric}_{self.statistic}"


@dataclass(frozen=True)
class Reading:
    """Hold what a run reached for a target; None when no request got that far."""

    target: Target
    value_ms: float | None

    @property
    def limit_ms(self) -> float:
        """Return the limit of the target."""
        return self.target.limit_ps / PS_PER_MS

    @property
    def met(self) -> bool:
        """Tell whether the target is met; never, when nothing was measured."""
        return self.value_ms is not None and self.value_ms <= self.limit_ms

    @property
    def head_room(self) -> float | None:
        """Return which share of the limit is left (negative: missed)."""
        return None if self.value_ms is None else 1 - self.value_ms / self.limit_ms


def parse_slo(text: str) -> tuple[Target, ...]:
    """Read `ttft_p95=2s,tpot_p99=50ms`; raise UsageError for anything else."""
    targets = [_parse_target(item.strip()) for item in text.split(",")]
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--slo names {name} twice")
    return tuple(targets)


def _parse_target(text: str) -> Target:
    match = _TARGET.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--slo {printable(text, 60)!r}: write METRIC_STATISTIC=TIME with a metric of "
            f"{', '.join(METRICS)} and mean or p1 to p99, such as ttft_p95=2s"
        )
    try:
        limit = parse_time(match[3])
    except InputError as error:
        raise UsageError(f"--slo {printable(text, 60)!r}: {error}") from None
    if limit <= 0:
        raise UsageError(f"--slo {printable(text, 60)!r}: no latency is below zero")
    return Target(match[1], match[2], limit)


def read(result: RunResult, targets: Sequence[Target]) -> tuple[Reading, ...]:
    """Return how a run stands against each target."""
    return tuple(
        Reading(target, _value_ms(target, result.itl_ps, result.itl_count))
        if target.metric == "itl"
        else read_requests(result.requests, target)
        for target in targets
    )


def read_requests(requests: RequestLog, target: Target) -> Reading:
    """Return how requests stand against a target of theirs: any but the inter-token latency."""
    if target.metric == "tpot":
        values = time_per_output_token_ps(requests)
    else:
        event = requests.first_token_ps if target.metric == "ttft" else requests.finish_ps
        values = since_arrival_ps(requests, event)
    values = values[values >= 0]
    return Reading(target, _value_ms(target, values, np.ones_like(values)))


def _value_ms(target: Target, values: npt.NDArray[Any], counts: npt.NDArray[Any]) -> float | None:
    """Return the statistic of a target over values and how often each occurs."""
    kept = counts > 0
    values, counts = values[kept], counts[kept]
    total = int(counts.sum())
    if not total:
        return None
    if target.statistic == "mean":
        return float((values.astype(float) * counts).sum()) / total / PS_PER_MS
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    return percentile(values[order], ends, int(target.statistic[1:])) / PS_PER_MS
