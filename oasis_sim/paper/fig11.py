"""Figure 11: throughput, running batch and time per token against concurrency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.result import RequestLog, StepLog
from oasis_sim.errors import RunFailed
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Setup
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_MS, PS_PER_S
from oasis_sim.workload import closed_loop

NAME = "fig11"
TITLE = "Figure 11: serving against concurrency"
MODELS = {"8b": ("qwen3-8b", 1), "235b": ("qwen3-235b-a22b", 8)}
SYSTEMS = ("oasis", "dense")
CONCURRENCIES = (8, 16, 32, 64, 128, 256)
CONTEXT_TOKENS = 16_384
OUTPUT_TOKENS = 2_048
UNITS = {"output_tokens_per_s": "tok/s", "running_batch": "requests", "tpot_ms": "ms"}
LEAST_REQUESTS, MOST_REQUESTS = 32, 512

Requests = Callable[[int], int]


@dataclass(frozen=True)
class Point:
    """Name one point of the figure."""

    model: str
    context_tokens: int
    system: str
    concurrency: int

    @property
    def keys(self) -> dict[str, str | float]:
        """Return the key columns of the point's rows."""
        return {
            "model": self.model,
            "context_tokens": self.context_tokens,
            "system": self.system,
            "concurrency": self.concurrency,
        }


def points(context_tokens: int) -> tuple[Point, ...]:
    """List the points of the figure at one context."""
    return tuple(
        Point(model, context_tokens, system, concurrency)
        for model in MODELS
        for system in SYSTEMS
        for concurrency in CONCURRENCIES
    )


def requests_for(concurrency: int) -> int:
    """Return how many requests pass before the loop counts as steady."""
    return min(max(4 * concurrency, LEAST_REQUESTS), MOST_REQUESTS)


def compare(
    setup: Setup, published: Published, context_tokens: int = CONTEXT_TOKENS
) -> Comparison:
    """Simulate every point of the figure at one context."""
    rows: list[Row] = []
    for point in points(context_tokens):
        result = simulate(scenario(setup, point, requests_for(point.concurrency)))
        simulated = metrics(result.steps, result.requests, point.concurrency)
        rows += beside(published, NAME, point.keys, UNITS, simulated)
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *setup.origin_notes))


NOTES = (
    f"scenario: closed loop of {LEAST_REQUESTS} to {MOST_REQUESTS} requests (four times the "
    f"concurrency), {OUTPUT_TOKENS:,} output tokens each; measured over whole request lives while "
    "the loop is full; running batch = tok/s x mean TPOT",
    "235b runs on 8 GPUs with tensor parallelism; tok/s are of all of them",
)


def scenario(setup: Setup, point: Point, requests: int) -> Scenario:
    """Return the run behind one point."""
    model, tp = MODELS[point.model]
    scheme = load_scheme(point.system)
    return Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=load_model(model),
        scheme=scheme,
        traces=setup.traces if scheme.offload else (),
        workload=closed_loop(requests, point.context_tokens, OUTPUT_TOKENS),
        concurrency=point.concurrency,
        tp=tp,
        schedule_steps=0,
    )


def metrics(steps: StepLog, requests: RequestLog, concurrency: int) -> dict[str, float | None]:
    """Return throughput, running batch and mean TPOT of the closed loop in its steady state.

    TPOT is (end - first token) / (tokens - 1), a mean over the requests that end in the window;
    rate x TPOT is the running batch (Little's law).
    """
    begin, end = steady_window(requests, concurrency)
    inside = (steps.start_ps >= begin) & (steps.end_ps <= end)
    rate = float(steps.output_tokens[inside].sum()) * PS_PER_S / (end - begin)
    ended = (requests.finish_ps > begin) & (requests.finish_ps <= end)
    span = (requests.finish_ps - requests.first_token_ps)[ended]
    tpot_ps = float(np.mean(span / (requests.output_tokens[ended] - 1)))
    return {
        "output_tokens_per_s": rate,
        "running_batch": rate * tpot_ps / PS_PER_S,
        "tpot_ms": tpot_ps / PS_PER_MS,
    }


def steady_window(requests: RequestLog, concurrency: int) -> tuple[int, int]:
    """Return the times between which the loop is full, a whole number of request lives apart.

    Equal requests that start together stay together, so that the load comes in waves; a window
    that cuts through a wave sees too much or too little prefill. It begins when the first request
    ends; the next to be admitted lives until the first wave is over, and so on, as long as
    requests wait or `concurrency` of them are in the system. Raises RunFailed for a short loop.
    """
    admitted = requests.admitted_ps[requests.finish_ps >= 0]
    finish = requests.finish_ps[requests.finish_ps >= 0]
    if len(finish) <= concurrency:
        raise RunFailed(f"{len(finish)} requests ended; a steady rate needs over {concurrency}")
    begin = end = int(finish.min())
    full_until = max(int(admitted.max()), int(np.sort(finish)[len(finish) - concurrency]))
    while True:
        later = np.flatnonzero(admitted >= end)
        if len(later) == 0:
            break
        following = int(finish[later[np.argmin(admitted[later])]])
        if following > full_until:
            break
        end = following
    if end == begin:
        raise RunFailed("the closed loop is too short to reach a steady state; use more requests")
    return begin, end
