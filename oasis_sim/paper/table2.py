"""Table 2: step time, throughput and fetched bytes of Qwen3-8B by fetch ratio."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.result import StepLog
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.paper.steady import full_steps
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.units import GB, PS_PER_MS, PS_PER_S
from oasis_sim.workload import closed_loop

NAME = "table2"
TITLE = "Table 2: OasisKV by fetch ratio (1 = all), Qwen3-8B"
MODEL = "qwen3-8b"
RATIOS = (0.01, 0.02, 0.05, 0.10, 0.20, 1.0)
REQUESTS = 128
PROMPT_TOKENS = 7168
OUTPUT_TOKENS = 2048
UNITS = {"step_ms": "ms", "output_tokens_per_s": "tok/s", "fetch_gb_per_step": "GB"}
NOTES = (
    f"scenario: {REQUESTS} requests at once, {PROMPT_TOKENS:,} prompt and {OUTPUT_TOKENS:,} output "
    f"tokens (mean context {PROMPT_TOKENS + OUTPUT_TOKENS // 2:,}); means over the steps that "
    f"decode all {REQUESTS} and nothing else",
    "the published run does not state its contexts; its batch of 124 to 132 fits the KV pool only "
    "below about 9,400 tokens",
)


def compare(setup: Setup, published: Published, progress: Progress = no_progress) -> Comparison:
    """Simulate every fetch ratio of the table; `progress` counts them."""
    rows: list[Row] = []
    for done, ratio in enumerate(RATIOS):
        progress(done, len(RATIOS))
        result = simulate(scenario(setup, ratio))
        rows += beside(published, NAME, {"fetch_ratio": ratio}, UNITS, metrics(result.steps))
    progress(len(RATIOS), len(RATIOS))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *setup.origin_notes(load_model(MODEL))))


def scenario(setup: Setup, ratio: float) -> Scenario:
    """Return the run behind one fetch ratio (1.0: no cap)."""
    return Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=load_model(MODEL),
        scheme=with_options(load_scheme("oasis"), fetch_ratio=ratio),
        traces=setup.traces,
        workload=closed_loop(REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS),
        concurrency=REQUESTS,
        max_steps=OUTPUT_TOKENS,
        schedule_steps=0,
    )


def metrics(steps: StepLog) -> dict[str, float | None]:
    """Return the table's metrics over the steps that decode every request and nothing else."""
    full = full_steps(steps, REQUESTS)
    step_ps = float(np.mean((steps.end_ps - steps.start_ps)[full]))
    return {
        "step_ms": step_ps / PS_PER_MS,
        "output_tokens_per_s": REQUESTS * PS_PER_S / step_ps,
        "fetch_gb_per_step": float(np.mean(steps.h2d_bytes[full])) / GB,
    }
