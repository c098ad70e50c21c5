"""How many requests each memory holds, and what keeps the batch from growing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oasis_sim.engine.result import RunResult
from oasis_sim.metrics.distribution import significant

NEARLY_FULL = 0.9
"""With open arrivals, memory limits a batch that came this close to filling it."""

LIMITS = ("concurrency", "requests", "arrivals", "prefill", "hbm", "host")
REFUSALS = ("hbm", "host", "concurrency")


@dataclass(frozen=True)
class Capacity:
    """Say how many requests of the longest length fit, at full length and as they decode.

    `request_bytes` is the HBM of one of them. `host_fit` is None where none is in host memory.
    `limit` is one of LIMITS, `held_share` the share of time that it held up admission, None where
    that was not observed.
    """

    request_bytes: int
    hbm_fit: int
    host_fit: int | None
    limit: str
    held_share: float | None


def capacity(result: RunResult) -> Capacity:
    """Return what fits into each memory, and what kept the batch from growing.

    That is what held up admission for the longest time. Where it was not observed, it is the
    smallest of the limits, at the longest request's size.
    """
    memory, workload = result.memory, result.scenario.workload
    scheme = result.scenario.scheme
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    sparse = scheme.selects and longest > scheme.attended_tokens_max
    size = memory.sparse_request_bytes if sparse else memory.dense_request_bytes
    hbm_fit = memory.kv_pool_bytes // max(size, 1)
    each = memory.host_request_bytes
    host_fit = memory.host_capacity_bytes // each if each else None
    held = result.held_ps
    if held is None:
        return Capacity(size, hbm_fit, host_fit, _limit(result, hbm_fit, host_fit), None)
    limit = longest_holdup(held)
    share = significant(held[limit] / max(sum(held.values()), 1))
    return Capacity(size, hbm_fit, host_fit, limit, share)


def longest_holdup(held_ps: Mapping[str, int]) -> str:
    """Return what held up admission longest.

    The wait for a place in prefill, and the end of a run in which no request is left to come,
    count only where nothing was refused.
    """
    refused = any(held_ps[kind] for kind in REFUSALS)
    kinds = (*REFUSALS, "arrivals") if refused else ("arrivals", "prefill", "requests")
    return max(kinds, key=lambda kind: held_ps[kind])


def _limit(result: RunResult, hbm_fit: int, host_fit: int | None) -> str:
    scenario = result.scenario
    limits = {} if scenario.concurrency is None else {"concurrency": scenario.concurrency}
    limits["requests"] = len(scenario.workload.arrival_ps)
    memories = {"hbm": hbm_fit} if host_fit is None else {"hbm": hbm_fit, "host": host_fit}
    if scenario.workload.span_s > 0:
        largest = result.totals.most_rows
        few = largest < NEARLY_FULL * min(*limits.values(), *memories.values())
        if few and not _is_full(result):
            return "arrivals"
    limits |= memories
    return min(limits, key=lambda name: limits[name])


def _is_full(result: RunResult) -> bool:
    """Say whether a memory was nearly filled, by requests in prefill too."""
    memory, totals = result.memory, result.totals
    used = (
        (totals.peak_hbm_bytes, memory.kv_pool_bytes),
        (totals.peak_host_bytes, memory.host_capacity_bytes),
    )
    return any(peak >= NEARLY_FULL * room for peak, room in used if peak)
