"""Several runs side by side: every number of each, and which of them differ.

Everything is read from mappings of `summary.json`, so that finished runs compare as fresh ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from oasis_sim.engine.result import BOUNDS, STAGES
from oasis_sim.errors import InputError
from oasis_sim.metrics.distribution import significant
from oasis_sim.report.row import Summary
from oasis_sim.scheme import Scheme
from oasis_sim.units import GIB

Reader = Callable[[Summary], float | None]

SAID_APART = {
    *("name", "title", "description", "offload", "predictor", "lookahead", "offload_at"),
    *("transport", "budget_tokens", "block_tokens", "cap_blocks", "fetch_ratio", "pool_factor"),
}
"""Parts of a scheme that a summary holds itself, and those that are only words."""

MATTERS = 0.01
"""Values within one per cent of each other are taken as equal."""


@dataclass(frozen=True)
class Case:
    """Hold one run: the name it was asked for by, its summary, and its scheme if it is known."""

    name: str
    summary: Summary
    scheme: Scheme | None = None


@dataclass(frozen=True)
class Metric:
    """Name one number of a summary, its unit, and where it is read."""

    section: str
    name: str
    unit: str
    read: Reader


@dataclass(frozen=True)
class Line:
    """Hold one metric of every case, in their order; None where a case has none."""

    metric: Metric
    values: tuple[float | None, ...]

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Return each value over the first one's."""
        first = self.values[0]
        return tuple(
            None if not first or value is None else significant(value / first)
            for value in self.values
        )

    @property
    def differs(self) -> bool:
        """Say whether the cases differ by more than rounding and chance."""
        known = [value for value in self.values if value is not None]
        if len(known) < len(self.values):
            return bool(known)
        return max(known) - min(known) > MATTERS * max(abs(value) for value in known)


@dataclass(frozen=True)
class Input:
    """Hold one part of the scenario in which the cases differ."""

    name: str
    values: tuple[Any, ...]


def at(path: str, factor: float = 1.0) -> Reader:
    """Return a reader of the number at a dotted path, times a factor."""

    def read(summary: Summary) -> float | None:
        value: Any = summary
        for key in path.split("."):
            value = value[key]
        return None if value is None else significant(float(value) * factor)

    return read


METRICS: tuple[Metric, ...] = (
    Metric("speed", "output_tokens_per_s", "tok/s", at("throughput.output_tokens_per_s")),
    Metric(
        "speed",
        "output_tokens_per_s_per_gpu",
        "tok/s",
        at("throughput.output_tokens_per_s_per_gpu"),
    ),
    Metric("speed", "roofline_tokens_per_s", "tok/s", at("bounds.output_tokens_per_s_upper")),
    Metric("speed", "tpot_mean_ms", "ms", at("latency.tpot_ms.mean")),
    Metric("speed", "ttft_mean_ms", "ms", at("latency.ttft_ms.mean")),
    Metric("speed", "itl_p99_ms", "ms", at("latency.itl_ms.p99")),
    Metric("speed", "step_mean_ms", "ms", at("steps.step_ms.mean")),
    Metric("batch", "running_batch_mean", "requests", at("steps.running_batch.mean")),
    Metric("batch", "requests_that_fit_hbm", "requests", at("tiers.hbm.requests_that_fit")),
    Metric("batch", "requests_that_fit_host", "requests", at("tiers.host.requests_that_fit")),
    Metric("batch", "kv_pool_gib", "GiB", at("tiers.hbm.kv_pool_bytes", 1 / GIB)),
    Metric("batch", "hbm_per_request_gib", "GiB", at("tiers.hbm.decode_request_bytes", 1 / GIB)),
    Metric("batch", "host_peak_gib", "GiB", at("tiers.host.peak_bytes", 1 / GIB)),
    *(
        Metric("stages of a step", f"{stage}_ms", "ms", at(f"stages_ms_per_step.{stage}"))
        for stage in STAGES
    ),
    *(
        Metric(
            "bound, share of time",
            f"{bound}_pct",
            "percent",
            at(f"step_bound.{bound}.share_of_time", 100.0),
        )
        for bound in BOUNDS
    ),
    Metric("traffic", "h2d_gb_per_step", "GB", at("links.pcie_h2d.bytes_per_step_mean", 1e-9)),
    Metric("traffic", "h2d_gb_per_s", "GB/s", at("links.pcie_h2d.gb_per_s_mean")),
    Metric("traffic", "h2d_utilisation_pct", "percent", at("links.pcie_h2d.utilisation", 100.0)),
    Metric("traffic", "d2h_gb_per_step", "GB", at("links.pcie_d2h.bytes_per_step_mean", 1e-9)),
    Metric("traffic", "d2h_gb_per_s", "GB/s", at("links.pcie_d2h.gb_per_s_mean")),
    Metric("working set", "needed_blocks", "blocks", at("residency.needed_blocks")),
    Metric("working set", "admitted_blocks", "blocks", at("residency.admitted_blocks")),
    Metric("working set", "deferred_blocks", "blocks", at("residency.deferred_blocks")),
    Metric("quality proxies", "topk_agreement_pct", "percent", at("quality.topk_agreement", 100.0)),
    Metric(
        "quality proxies", "attention_mass_pct", "percent", at("quality.attention_mass.mean", 100.0)
    ),
    Metric("quality proxies", "lost_mass_p95_pct", "percent", at("quality.lost_mass.p95", 100.0)),
    Metric("requests", "completed", "requests", at("requests.completed")),
    Metric("requests", "rejected", "requests", at("requests.rejected")),
    Metric("requests", "preempted", "requests", at("requests.preempted")),
)


HARDWARE: tuple[tuple[str, Reader], ...] = (
    ("hbm_gib", at("tiers.hbm.capacity_bytes", 1 / GIB)),
    ("host_gib", at("tiers.host.capacity_bytes", 1 / GIB)),
    ("pcie_nominal_gb_per_s", at("links.pcie_h2d.nominal_gb_per_s")),
)
"""Sizes and rates that options change while the profile keeps its name."""


def lines_of(cases: tuple[Case, ...]) -> tuple[Line, ...]:
    """Return every metric that any of the cases has; raise InputError for a damaged summary."""
    lines = []
    for metric in METRICS:
        values = tuple(_read(metric, case) for case in cases)
        if any(values):
            lines.append(Line(metric, values))
    return tuple(lines)


def _read(metric: Metric, case: Case) -> float | None:
    try:
        return metric.read(case.summary)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"its summary lacks a number: {metric.name}", file=case.name, fix="run again"
        ) from None


def inputs_that_differ(cases: tuple[Case, ...]) -> tuple[Input, ...]:
    """Return the inputs in which the cases differ, nested parts of the scenario dotted.

    Parts of schemes are compared where those of every case are known.
    """
    flat = [
        dict(_leaves(case.summary["scenario"]))
        | {name: read(case.summary) for name, read in HARDWARE}
        for case in cases
    ]
    schemes = [case.scheme for case in cases if case.scheme is not None]
    if len(schemes) == len(cases):
        flat = [each | _parts(scheme) for each, scheme in zip(flat, schemes, strict=True)]
    found = []
    for name in dict.fromkeys(name for each in flat for name in each):
        values = tuple(each.get(name) for each in flat)
        if any(value != values[0] for value in values):
            found.append(Input(name, values))
    return tuple(found)


def _parts(scheme: Scheme) -> dict[str, Any]:
    """Return the parts of a scheme that its summary does not hold."""
    return {
        part.name: getattr(scheme, part.name)
        for part in fields(scheme)
        if part.name not in SAID_APART
    }


def _leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            found += _leaves(item, f"{path}{key}.")
        else:
            found.append((f"{path}{key}", item))
    return found
