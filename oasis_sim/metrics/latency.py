"""Latencies of requests, with the names that vLLM's benchmarks use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.result import RequestLog, RunResult
from oasis_sim.metrics.distribution import distribution
from oasis_sim.units import PS_PER_MS

NEVER = -1


def time_per_output_token_ps(requests: RequestLog) -> npt.NDArray[np.int64]:
    """Return TPOT of each request: its decode time over its tokens after the first; -1 if none."""
    gaps = requests.generated_tokens - 1
    done = (requests.finish_ps >= 0) & (requests.first_token_ps >= 0) & (gaps > 0)
    span = requests.finish_ps - requests.first_token_ps
    return np.where(done, span // np.maximum(gaps, 1), NEVER)


def since_arrival_ps(requests: RequestLog, event_ps: npt.NDArray[np.int64]) -> Any:
    """Return the time from arrival to an event of each request; -1 where it never happened."""
    return np.where(event_ps >= 0, event_ps - requests.arrival_ps, NEVER)


def latencies(result: RunResult) -> dict[str, Any]:
    """Return TPOT, TTFT, inter-token and end-to-end latency of the requests that have them."""
    requests = result.requests
    per_request = {
        "tpot_ms": time_per_output_token_ps(requests),
        "ttft_ms": since_arrival_ps(requests, requests.first_token_ps),
        "e2e_ms": since_arrival_ps(requests, requests.finish_ps),
    }
    folded = {
        name: distribution(values[values >= 0]).scaled(PS_PER_MS)
        for name, values in per_request.items()
    }
    folded["itl_ms"] = distribution(result.itl_ps, result.itl_count).scaled(PS_PER_MS)
    return {name: folded[name] for name in ("tpot_ms", "ttft_ms", "itl_ms", "e2e_ms")}
