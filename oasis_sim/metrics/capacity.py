"""How many requests each memory holds, and what keeps the batch from growing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oasis_sim.engine.result import RunResult
from oasis_sim.metrics.distribution import significant

LIMITS = ("concurrency", "requests", "arrivals", "prefill", "prefill_nodes", "hbm", "host")
REFUSALS = ("hbm", "host", "concurrency", "prefill_nodes")


@dataclass(frozen=True)
class Capacity:
    """Say how many requests of the longest length fit, at full length and as they decode.

    `request_bytes` is the HBM of one of them. `host_fit` is None where none is in host memory.
    `limit` is one of LIMITS, `held_share` the share of time that it held up admission.
    """

    request_bytes: int
    hbm_fit: int
    host_fit: int | None
    limit: str
    held_share: float


def capacity(result: RunResult) -> Capacity:
    """Return what fits into each memory, and what kept the batch from growing.

    That is what held up admission for the longest time.
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
