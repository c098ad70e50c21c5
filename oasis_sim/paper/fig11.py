"""Figure 11: throughput, running batch and time per token against concurrency."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.result import RequestLog, StepLog
from oasis_sim.engine.spec import DEFAULT_ENGINE
from oasis_sim.errors import RunFailed
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.paper.steady import steady_window
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_MS, PS_PER_S, parse_time
from oasis_sim.workload import Workload, closed_loop

NAME = "fig11"
TITLE = "Figure 11: serving a closed loop, by concurrency"
MODELS = {"8b": ("qwen3-8b", 1), "235b": ("qwen3-235b-a22b", 8)}
SYSTEMS = ("oasis", "dense", "shadowkv", "infinigen", "freekv")
OWN_ENGINES = ("shadowkv", "infinigen", "freekv")
CONCURRENCIES = (8, 16, 32, 64, 128, 256)
CONTEXT_TOKENS = 16_384
GPUS_PER_HOST = 8
OUTPUT_TOKENS = 2_048
UNITS = {"output_tokens_per_s": "tok/s", "running_batch": "requests", "tpot_ms": "ms"}
LIVES = 2
THINK_TIME = "3.8 s"
"""From the end of a request to the next one of the same client (docs/calibration.md)."""
THINK_PS = parse_time(THINK_TIME)
NOTES = (
    f"scenario: closed loop of equal requests with {OUTPUT_TOKENS:,} output tokens each and a "
    f"think time of {THINK_TIME} (docs/calibration.md), measured over whole request lives while "
    "the loop is full; running batch = tok/s x mean TPOT; static batches: no think time, and the "
    "running batch is the requests of one",
    "shadowkv, infinigen and freekv run in the cost models of their own code bases where the "
    "profile has them, on one GPU",
    "235b runs on 8 GPUs with tensor parallelism; tok/s are of all of them",
)


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


def compare(
    setup: Setup,
    published: Published,
    progress: Progress = no_progress,
    context_tokens: int = CONTEXT_TOKENS,
) -> Comparison:
    """Simulate every point of the figure at one context; `progress` counts them."""
    rows: list[Row] = []
    failures: dict[str, None] = {}
    todo = points(context_tokens)
    for done, point in enumerate(todo):
        progress(done, len(todo))
        found = simulated(setup, point)
        if isinstance(found, str):
            # What does not fit is a result: the point stays empty and says why.
            failures[f"{point.model} {point.system}: {found}"] = None
            found = {}
        rows += beside(published, NAME, point.keys, UNITS, found)
    progress(len(todo), len(todo))
    origin = setup.origin_notes(*(load_model(name) for name, _ in MODELS.values()))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *failures, *origin))


def simulated(setup: Setup, point: Point) -> dict[str, float | None] | str:
    """Run one point and return its metrics, or why it cannot run."""
    try:
        result = simulate(scenario(setup, point))
    except RunFailed as error:
        return str(error)
    found = metrics(result.steps, result.requests, point.concurrency)
    if setup.profile.engine(result.scenario.engine_name).static_batches:
        found["running_batch"] = decoding_rows(result.steps)
    return found


def scenario(setup: Setup, point: Point) -> Scenario:
    """Return the run behind one point: enough requests for a window of two lives or more."""
    name, tp = MODELS[point.model]
    model, scheme = load_model(name), load_scheme(point.system)
    engine = engine_of(setup, point.system)
    cost = CostModel(setup.profile, engine, model, scheme, tp)
    together = most_together(cost, point)
    static = setup.profile.engine(engine).static_batches
    loop = closed_loop(point.concurrency + LIVES * together, point.context_tokens, OUTPUT_TOKENS)
    return Scenario(
        profile=setup.profile,
        engine_name=engine,
        model=model,
        scheme=scheme,
        traces=setup.traces if scheme.selects else (),
        workload=loop if static else spread(loop, together),
        concurrency=point.concurrency,
        think_ps=0 if static else THINK_PS,
        tp=tp,
        # The GPUs that are not used leave their share of the host to the others.
        host_bytes=setup.profile.host.kv_bytes * GPUS_PER_HOST // tp,
        schedule_steps=0,
    )


def spread(loop: Workload, together: int) -> Workload:
    """Return the loop with shorter first requests, so that requests end evenly spaced.

    The first `together` get 1/n, 2/n, ... of the output: what is left to those that run at some
    moment of a loop long in service. Equal ones that start together would stay together, in waves.
    """
    output = loop.output_tokens.copy()
    part = output[:together] * np.arange(1, together + 1) // together
    output[:together] = np.maximum(part, 2)
    return replace(loop, output_tokens=output)


def engine_of(setup: Setup, system: str) -> str:
    """Return the engine of a system: its own code base beside `vllm`, if the profile knows it."""
    own = system in OWN_ENGINES and system in setup.profile.engines
    return system if own and setup.engine == DEFAULT_ENGINE else setup.engine


def decoding_rows(steps: StepLog) -> float:
    """Return the mean number of requests in the steps that decode."""
    rows = steps.sparse_rows + steps.dense_rows
    return float(rows[rows > 0].mean())


def most_together(cost: CostModel, point: Point) -> int:
    """Return how many requests of a point may run at once: by concurrency or by HBM."""
    plan = plan_memory(cost, point.context_tokens)
    return max(1, min(point.concurrency, plan.kv_pool_bytes // plan.sparse_request_bytes))


def metrics(steps: StepLog, requests: RequestLog, concurrency: int) -> dict[str, float | None]:
    """Return throughput, running batch and mean TPOT of the closed loop in its steady state.

    TPOT is (end - first token) / (tokens - 1), a mean over the requests that end in the window,
    which begins when the shorter ones have (see `spread`); rate x TPOT is the running batch
    (Little's law).
    """
    output = requests.output_tokens
    begin, end = steady_window(requests, concurrency, int((output < output.max()).sum()))
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
