"""Figure 2 for any model and card, and the same stages under a scheme of today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oasis_sim.engine import RunResult, Scenario
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import STAGES
from oasis_sim.model import ModelShape
from oasis_sim.paper.retrieval import Retrieval
from oasis_sim.paper.setup import Setup
from oasis_sim.paper.steady import full_steps
from oasis_sim.scheme import Scheme
from oasis_sim.units import PS_PER_MS
from oasis_sim.workload import closed_loop

PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("qkv", "output_ffn", "lm_head", "draft"),
    "attention": ("attention",),
    "retrieval": ("transfer_wait",),
    "launch": ("launch",),
}
"""Parts of a step's critical path, and the stages of the engine that make each of them up."""

BACKGROUND = ("prediction", "selection", "transfer")
OTHER, TPOT = "other", "tpot"
OUTPUT_TOKENS = 2048


@dataclass(frozen=True)
class Breakdown:
    """Hold the serial stages, and the simulated parts and background stages, in ms per step.

    `simulated` adds up to `step_ms`; `background` runs beside it. What of it is on the critical
    path is inside `retrieval`: all of it where a scheme fetches on demand, prediction where an
    engine runs it inline.
    """

    serial: Retrieval
    simulated: Mapping[str, float]
    background: Mapping[str, float]
    step_ms: float

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per part, the sum, then the background stages."""
        serial = {
            "weights": self.serial.weights_s,
            "attention": self.serial.attention_s,
            "retrieval": self.serial.retrieval_s,
            TPOT: self.serial.tpot_s,
        }
        simulated = {**self.simulated, TPOT: self.step_ms}
        rows: list[dict[str, Any]] = [
            {
                "stage": name,
                "critical_path": True,
                "serial_ms": 1e3 * serial[name] if name in serial else None,
                "serial_share_pct": self.serial.share_pct(serial[name]) if name in serial else None,
                "simulated_ms": value,
                "simulated_share_pct": 100.0 * value / self.step_ms,
            }
            for name, value in simulated.items()
        ]
        rows += [
            {
                "stage": name,
                "critical_path": False,
                "serial_ms": None,
                "serial_share_pct": None,
                "simulated_ms": value,
                "simulated_share_pct": 100.0 * value / self.step_ms,
            }
            for name, value in self.background.items()
        ]
        return rows


def breakdown_scenario(
    setup: Setup, model: ModelShape, scheme: Scheme, batch: int, context_tokens: int
) -> Scenario:
    """Return a run that decodes `batch` requests from `context_tokens` on, all at once."""
    return Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=model,
        scheme=scheme,
        traces=setup.traces,
        workload=closed_loop(batch, context_tokens, OUTPUT_TOKENS),
        concurrency=batch,
        max_steps=OUTPUT_TOKENS,
        schedule_steps=0,
    )


def breakdown_of(serial: Retrieval, result: RunResult) -> Breakdown:
    """Split the mean step that decodes the whole batch and nothing else."""
    scenario, steps = result.scenario, result.steps
    batch = len(scenario.workload.arrival_ps)
    # Contexts within the budget stay dense under every scheme.
    full = full_steps(steps, batch, sparse=bool(steps.sparse_rows.any()))
    mean_ps = np.mean(steps.stage_ps[full], axis=0)
    stage_ms = {name: float(mean_ps[i]) / PS_PER_MS for i, name in enumerate(STAGES)}
    step_ms = float(np.mean((steps.end_ps - steps.start_ps)[full])) / PS_PER_MS
    parts = {name: sum(stage_ms[stage] for stage in stages) for name, stages in PARTS.items()}
    priced = (scenario.profile, scenario.engine_name, scenario.model, scenario.scheme)
    if CostModel(*priced, scenario.tp).predicts_inline:
        parts["retrieval"] += stage_ms["prediction"]
    # What no stage accounts for: waiting until new KV is in host memory.
    parts[OTHER] = max(0.0, step_ms - sum(parts.values()))
    background = {name: stage_ms[name] for name in BACKGROUND} if scenario.scheme.selects else {}
    return Breakdown(serial, parts, background, step_ms)
