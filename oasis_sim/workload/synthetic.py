"""Workloads without a file: a closed loop and Poisson arrivals."""

from __future__ import annotations

import math

import numpy as np

from oasis_sim.errors import UsageError
from oasis_sim.units import PS_PER_S
from oasis_sim.workload.workload import (
    LARGEST_ARRIVAL_PS,
    LARGEST_REQUESTS,
    LARGEST_TOKENS,
    Workload,
)

LARGEST_ARRIVAL_S = LARGEST_ARRIVAL_PS / PS_PER_S
_ARRIVAL_STREAM = 1
"""Number of the random stream of arrivals, so that other streams of a seed stay apart."""


def closed_loop(requests: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Return equal requests that all wait from the start; concurrency is the engine's limit."""
    _check(requests, prompt_tokens, output_tokens)
    return Workload(
        name="closed loop",
        format="closed_loop",
        arrival_ps=np.zeros(requests, dtype=np.int64),
        prompt_tokens=np.full(requests, prompt_tokens, dtype=np.int64),
        output_tokens=np.full(requests, output_tokens, dtype=np.int64),
    )


def poisson(
    rate_per_s: float, requests: int, prompt_tokens: int, output_tokens: int, seed: int
) -> Workload:
    """Return equal requests with exponential gaps of mean 1 / rate; the first arrives at 0.

    The gaps are -ln(1 - u) / rate (inverse transform) over a PCG64 stream of the seed, rounded
    to picoseconds one by one, so that they are the same on every machine.
    """
    _check(requests, prompt_tokens, output_tokens)
    if not 0 < rate_per_s < math.inf:
        raise UsageError(f"a rate of {rate_per_s} requests per second; give a positive number")
    if not 0 <= seed < 2**64:
        raise UsageError(f"a seed of {seed}; give 0 to 2^64 - 1")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _ARRIVAL_STREAM])))
    draws = stream.random(requests - 1).tolist()
    if math.fsum(-math.log1p(-draw) for draw in draws) / rate_per_s > LARGEST_ARRIVAL_S:
        raise UsageError("the arrivals span more than 53 days; raise the rate")
    arrivals = [0]
    for draw in draws:
        arrivals.append(arrivals[-1] + round(-math.log1p(-draw) / rate_per_s * PS_PER_S))
    if arrivals[-1] > LARGEST_ARRIVAL_PS:
        raise UsageError("the arrivals span more than 53 days; raise the rate")
    return Workload(
        name=f"Poisson, {rate_per_s:g} requests/s",
        format="poisson",
        arrival_ps=np.array(arrivals, dtype=np.int64),
        prompt_tokens=np.full(requests, prompt_tokens, dtype=np.int64),
        output_tokens=np.full(requests, output_tokens, dtype=np.int64),
    )


def _check(requests: int, prompt_tokens: int, output_tokens: int) -> None:
    for noun, value, high in (
        ("requests", requests, LARGEST_REQUESTS),
        ("prompt tokens", prompt_tokens, LARGEST_TOKENS),
        ("output tokens", output_tokens, LARGEST_TOKENS),
    ):
        if not 1 <= value <= high:
            raise UsageError(f"{value} {noun}; give 1 to {high}")
