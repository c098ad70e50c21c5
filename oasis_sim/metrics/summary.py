"""The contract of `summary.json`: every number carries its unit, nothing is NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oasis_sim import __version__
from oasis_sim.engine.memory import footprint
from oasis_sim.engine.result import BOUNDS, STAGES, STATUS, RunResult
from oasis_sim.metrics.capacity import Capacity, capacity
from oasis_sim.metrics.describe import describe_scenario
from oasis_sim.metrics.distribution import distribution, finite_or_none, significant
from oasis_sim.metrics.latency import latencies
from oasis_sim.metrics.overload import Offered, offered
from oasis_sim.metrics.proxy import proxy_error
from oasis_sim.metrics.traffic import cost_model, links
from oasis_sim.units import PS_PER_MS, PS_PER_S

SCHEMA_VERSION = 1


def summarise(result: RunResult) -> dict[str, Any]:
    """Fold one run into the mapping of `summary.json`."""
    room, load = capacity(result), offered(result)
    return {
        "schema_version": SCHEMA_VERSION,
        "oasis_sim_version": __version__,
        "scenario": describe_scenario(result.scenario),
        "throughput": _throughput(result, load),
        "latency": latencies(result),
        "steps": _steps(result),
        "stages_ms_per_step": _stages(result),
        "step_bound": _step_bound(result),
        "links": links(result),
        "tiers": _tiers(result, room),
        "batch_limit": room.limit,
        "batch_limit_share_of_time": room.held_share,
        "residency": _residency(result),
        "quality": _quality(result),
        "requests": _requests(result),
        "bounds": {
            "step_ms_lower": finite_or_none(result.bounds.step_ms_lower),
            "output_tokens_per_s_upper": finite_or_none(result.bounds.output_tokens_per_s_upper),
        },
        "notes": [*result.notes, *(load.notes if load else ())],
    }


def duration_ps(result: RunResult) -> int:
    """Return the simulated time from the first arrival to the end of the last step."""
    if result.totals.count == 0 or len(result.requests) == 0:
        return 0
    return result.totals.end_ps - int(result.requests.arrival_ps.min())


def _throughput(result: RunResult, load: Offered | None) -> dict[str, Any]:
    span, totals = duration_ps(result), result.totals
    tokens = totals.output_tokens
    finished = int(np.count_nonzero(result.requests.status == STATUS.index("completed")))
    return {
        "output_tokens_per_s": _per_second(tokens, span),
        "requests_per_s": _per_second(finished, span),
        "gpus": result.scenario.tp,
        "output_tokens_per_s_per_gpu": _per_second(tokens, span * result.scenario.tp),
        "decode_output_tokens_per_s": _per_second(totals.decode_tokens, totals.decode_ps),
        "offered_requests_per_s": significant(load.arrive_per_s) if load else None,
        "output_tokens": tokens,
        "duration_s": significant(span / PS_PER_S),
    }


def _per_second(amount: int, span_ps: int) -> float | None:
    return significant(amount * PS_PER_S / span_ps) if span_ps > 0 else None


def _steps(result: RunResult) -> dict[str, Any]:
    totals = result.totals
    count, rows = totals.count, totals.all_rows
    return {
        "count": count,
        "step_ms": distribution(totals.step_ps).scaled(PS_PER_MS),
        "running_batch": {
            "mean": significant(rows / count) if count else None,
            "max": totals.most_rows,
        },
        "sparse_row_share": _ratio(totals.sparse_rows, rows),
        "prefill_tokens": totals.prefill_tokens,
    }


def _ratio(part: float, whole: float) -> float | None:
    return significant(part / whole) if whole else None


def _stages(result: RunResult) -> dict[str, float | None]:
    count = result.totals.count * PS_PER_MS
    sums = result.totals.stage_ps.tolist()
    return {name: _ratio(total, count) for name, total in zip(STAGES, sums, strict=True)}


def _step_bound(result: RunResult) -> dict[str, Any]:
    """Return, per kind of limit, the share of steps and of time that it bounds."""
    totals = result.totals
    return {
        name: {
            "share_of_steps": _ratio(int(totals.bound_steps[i]), totals.count),
            "share_of_time": _ratio(int(totals.bound_ps[i]), totals.busy_ps),
        }
        for i, name in enumerate(BOUNDS)
    }


def _tiers(result: RunResult, room: Capacity) -> dict[str, dict[str, Any]]:
    memory = result.memory
    peak_kv, peak_host = result.totals.peak_hbm_bytes, result.totals.peak_host_bytes
    return {
        "hbm": {
            "capacity_bytes": memory.hbm_capacity_bytes,
            "usable_bytes": memory.hbm_usable_bytes,
            "weights_bytes": memory.weights_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "kv_pool_bytes": memory.kv_pool_bytes,
            "peak_kv_bytes": peak_kv,
            "peak_bytes": memory.weights_bytes + memory.reserved_bytes + peak_kv,
            "dense_request_bytes": memory.dense_request_bytes,
            "sparse_request_bytes": memory.sparse_request_bytes,
            "sparse_request_parts": _sparse_parts(result),
            "decode_request_bytes": room.request_bytes,
            "requests_that_fit": room.hbm_fit,
        },
        "host": {
            "capacity_bytes": memory.host_capacity_bytes,
            "weights_bytes": 0,
            "peak_bytes": peak_host,
            "request_bytes": memory.host_request_bytes,
            "requests_that_fit": room.host_fit,
        },
        "remote": {"capacity_bytes": 0, "weights_bytes": 0, "peak_bytes": 0},
    }


def _sparse_parts(result: RunResult) -> dict[str, int | None]:
    """Split the HBM of the longest request in its sparse phase; None where there is none."""
    scenario = result.scenario
    if not scenario.scheme.offload:
        parts = ("working_set_bytes", "compressed_keys_bytes", "draft_kv_bytes")
        return dict.fromkeys(parts)
    sizes = footprint(cost_model(scenario))
    tokens = int((scenario.workload.prompt_tokens + scenario.workload.output_tokens).max())
    return {
        "working_set_bytes": sizes.sparse_fixed,
        "compressed_keys_bytes": sizes.compressed_token * tokens,
        "draft_kv_bytes": sizes.draft_token * tokens,
    }


def _residency(result: RunResult) -> dict[str, float | None]:
    """Return block counts as means per sparse row, KV head, layer and step."""
    totals, scenario = result.totals, result.scenario
    # A head that several GPUs hold is fetched by each of them.
    heads = scenario.model.kv_heads_per_gpu(scenario.tp) * scenario.tp
    places = totals.sparse_rows * heads * scenario.model.layers
    needed = totals.needed_blocks
    missed = _ratio(needed, places * scenario.scheme.chosen_blocks)
    return {
        "chosen_blocks": scenario.scheme.chosen_blocks if scenario.scheme.selects else None,
        "needed_blocks": _ratio(needed, places),
        "admitted_blocks": _ratio(totals.admitted_blocks, places),
        "deferred_blocks": _ratio(totals.deferred_blocks, places),
        "hit_rate": None if missed is None else significant(1 - missed),
    }


def _quality(result: RunResult) -> dict[str, Any]:
    quality = result.quality
    if not result.totals.sparse_rows:
        # Proxies are means over rows that select; where none was decoded there is nothing to say.
        quality = replace(
            quality,
            topk_agreement=None,
            mass_mean=None,
            mass_p5=None,
            lost_mass_mean=None,
            lost_mass_p95=None,
        )
    return {
        "kind": "proxies read off the trace, not accuracy",
        "topk_agreement": finite_or_none(quality.topk_agreement),
        "attention_mass": {
            "mean": finite_or_none(quality.mass_mean),
            "p5": finite_or_none(quality.mass_p5),
        },
        "lost_mass": {
            "mean": finite_or_none(quality.lost_mass_mean),
            "p95": finite_or_none(quality.lost_mass_p95),
        },
        "proxy_error": None if quality.mass_mean is None else proxy_error(),
    }


def _requests(result: RunResult) -> dict[str, int]:
    requests = result.requests
    counts = np.bincount(requests.status, minlength=len(STATUS)).tolist()
    by_status = dict(zip(STATUS, counts, strict=True))
    return {
        "arrived": len(requests),
        "completed": by_status["completed"],
        "rejected": by_status["rejected"],
        "preempted": int(np.count_nonzero(requests.preemptions)),
        "preemptions": int(requests.preemptions.sum()),
        "running_at_end": by_status["running"],
        "waiting_at_end": by_status["waiting"],
    }
