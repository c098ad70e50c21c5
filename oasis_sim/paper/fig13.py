"""Figure 13: throughput against the budget, on the scenario of Table 2."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine import RunResult, Scenario, simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.errors import InputError, RunFailed
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.paper.steady import steady_window
from oasis_sim.paper.table2 import OUTPUT_TOKENS, PROMPT_TOKENS, REQUESTS
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import closed_loop

NAME = "fig13"
TITLE = "Figure 13: throughput by budget (0 = dense)"
MODELS = {"8b": ("qwen3-8b", 1), "235b": ("qwen3-235b-a22b", 8)}
BUDGETS = (0, 64, 128, 192)
BLOCK_TOKENS = 16
GPUS_PER_HOST = 8
LIVES = 2
EXTRA = ("running_batch", "with_prefill_tokens_per_s")
UNITS = {"output_tokens_per_s": "tok/s"}
NOTES = (
    f"scenario of table 2: {REQUESTS} requests in the system, {PROMPT_TOKENS:,} prompt and "
    f"{OUTPUT_TOKENS:,} output tokens; rate of the steps that decode and prefill nothing, with as "
    "many requests as memory holds; beside it the rate over all steps, with prefill and "
    "recomputation of preempted requests",
    "235b runs on 8 GPUs with tensor parallelism; tok/s are of all of them",
    "the figure's numbers are not known here; for 8b, table 2 gives 1,235 tok/s dense and 2,083 at "
    "128 blocks",
)


def compare(setup: Setup, published: Published, progress: Progress = no_progress) -> Comparison:
    """Simulate every model and budget; `progress` counts them."""
    rows: list[Row] = []
    failures: list[str] = []
    points = [(model, budget) for model in MODELS for budget in BUDGETS]
    for done, (model, budget) in enumerate(points):
        progress(done, len(points))
        simulated: dict[str, float | None] = {}
        extra: dict[str, float | None] = dict.fromkeys(EXTRA)
        try:
            rates = decode_rates(simulate(scenario(setup, model, budget)))
            simulated = {metric: rates[metric] for metric in UNITS}
            extra = {name: rates[name] for name in EXTRA}
        except (RunFailed, InputError) as error:
            # What does not fit, or is not in the trace, leaves its point empty and says why.
            failures.append(f"{model}, {budget} blocks: {error}")
        keys: dict[str, str | float] = {"model": model, "budget_blocks": budget}
        rows += beside(published, NAME, keys, UNITS, simulated, extra)
    progress(len(points), len(points))
    origin = setup.origin_notes(*(load_model(name) for name, _ in MODELS.values()))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *failures, *origin))


def scenario(setup: Setup, model: str, budget_blocks: int) -> Scenario:
    """Return the run behind one budget in blocks (0: dense), two request lives or longer."""
    name, tp = MODELS[model]
    shape, scheme = load_model(name), load_scheme("oasis" if budget_blocks else "dense")
    if budget_blocks:
        scheme = with_options(
            scheme, budget_tokens=budget_blocks * BLOCK_TOKENS, block_tokens=BLOCK_TOKENS
        )
    cost = CostModel(setup.profile, setup.engine, shape, scheme, tp)
    plan = plan_memory(cost, PROMPT_TOKENS)
    together = max(1, min(REQUESTS, plan.kv_pool_bytes // plan.sparse_request_bytes))
    return Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=shape,
        scheme=scheme,
        traces=setup.traces if scheme.offload else (),
        workload=closed_loop(REQUESTS + LIVES * together, PROMPT_TOKENS, OUTPUT_TOKENS),
        concurrency=REQUESTS,
        tp=tp,
        # The GPUs that are not used leave their share of the host to the others.
        host_bytes=setup.profile.host.kv_bytes * GPUS_PER_HOST // tp,
        schedule_steps=0,
    )


def decode_rates(result: RunResult) -> dict[str, float]:
    """Return rates and mean batch of the closed loop in its steady state.

    `output_tokens_per_s` and `running_batch` are those of the steps that only decode.
    """
    steps = result.steps
    begin, end = steady_window(result.requests, REQUESTS)
    inside = (steps.start_ps >= begin) & (steps.end_ps <= end)
    chosen = inside & (steps.prefill_tokens == 0) & (steps.output_tokens > 0)
    if not chosen.any():
        raise RunFailed("no step decodes without prefill beside it; use longer outputs")
    span = int((steps.end_ps - steps.start_ps)[chosen].sum())
    rows = (steps.sparse_rows + steps.dense_rows)[chosen]
    return {
        "output_tokens_per_s": int(steps.output_tokens[chosen].sum()) * PS_PER_S / span,
        "running_batch": float(np.mean(rows)),
        "with_prefill_tokens_per_s": int(steps.output_tokens[inside].sum())
        * PS_PER_S
        / (end - begin),
    }
