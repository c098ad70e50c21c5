"""Table 2: step time, throughput and fetched bytes of Qwen3-8B by fetch ratio."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.result import StepLog
from oasis_sim.errors import RunFailed
from oasis_sim.model import load_model
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Setup
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.units import PS_PER_MS, PS_PER_S
from oasis_sim.workload import closed_loop

NAME = "table2"
TITLE = "Table 2: OasisKV by fetch ratio, Qwen3-8B"
MODEL = "qwen3-8b"
RATIOS = (0.01, 0.02, 0.05, 0.10, 0.20, 1.0)
REQUESTS = 128
PROMPT_TOKENS = 7168
OUTPUT_TOKENS = 2048
UNITS = {"step_ms": "ms", "output_tokens_per_s": "tok/s", "fetch_gb_per_step": "GB"}
BYTES_PER_GB = 1e9


def compare(setup: Setup, published: Published) -> Comparison:
    """Simulate every fetch ratio of the table."""
    rows: list[Row] = []
    for ratio in RATIOS:
        result = simulate(scenario(setup, ratio))
        rows += beside(published, NAME, {"fetch_ratio": ratio}, UNITS, metrics(result.steps))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *setup.origin_notes))


NOTES = (
    f"scenario: {REQUESTS} requests at once, {PROMPT_TOKENS:,} prompt and {OUTPUT_TOKENS:,} "
    f"output tokens (mean context {PROMPT_TOKENS + OUTPUT_TOKENS // 2:,}); means over the steps "
    f"that decode all {REQUESTS} and nothing else",
    "the contexts of the published run are not stated; its batch of 124 to 132 fits the KV pool "
    "only below about 9,400 tokens",
)


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
    """Return the table's metrics over the steps that decode every request and nothing else.

    Raises RunFailed when no step does, because the requests do not fit together.
    """
    full = (steps.prefill_tokens == 0) & (steps.sparse_rows == REQUESTS)
    if not full.any():
        raise RunFailed(
            f"at most {int(steps.sparse_rows.max())} of the {REQUESTS} requests of table 2 decode "
            "together on this hardware; choose a profile with more HBM"
        )
    step_ps = float(np.mean((steps.end_ps - steps.start_ps)[full]))
    return {
        "step_ms": step_ps / PS_PER_MS,
        "output_tokens_per_s": REQUESTS * PS_PER_S / step_ps,
        "fetch_gb_per_step": float(np.mean(steps.h2d_bytes[full])) / BYTES_PER_GB,
    }
