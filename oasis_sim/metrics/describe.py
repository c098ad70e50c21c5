"""The `scenario` part of a summary: what was simulated, in plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.scenario import Scenario
from oasis_sim.metrics.distribution import significant
from oasis_sim.scheme import Scheme


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return the inputs of a run as the mapping of `summary.json`."""
    scheme, workload = scenario.scheme, scenario.workload
    return {
        "profile": scenario.profile.name,
        "engine": scenario.engine_name,
        "model": scenario.model.name,
        "scheme": scheme.name,
        "trace": describe_traces(scenario),
        **_sparse_parts(scheme),
        "offload": scheme.offload,
        "predictor": scheme.predictor,
        "lookahead": scheme.lookahead,
        "offload_at": scheme.offload_at if scheme.offload else None,
        "transport": scheme.transport,
        "context_tokens": _typical(workload.prompt_tokens),
        "output_tokens": _typical(workload.output_tokens),
        "concurrency": scenario.concurrency,
        "requests": len(workload.arrival_ps),
        "workload": {
            "format": workload.format,
            "prompt_tokens": _range(workload.prompt_tokens),
            "output_tokens": _range(workload.output_tokens),
            "span_s": significant(workload.span_s),
            "mean_rate_per_s": significant(workload.mean_rate_per_s),
        },
        "tp": scenario.tp,
        "seed": scenario.seed,
        "max_steps": scenario.max_steps,
        **_prediction(scenario),
    }


def _prediction(scenario: Scenario) -> dict[str, bool]:
    """Say that prediction is a stage of the foreground, where it is one."""
    priced = (scenario.profile, scenario.engine_name, scenario.model, scenario.scheme)
    inline = CostModel(*priced, scenario.tp).predicts_inline
    return {"prediction_inline": True} if inline else {}


def _sparse_parts(scheme: Scheme) -> dict[str, Any]:
    """Return sizes of the working set; None where nothing is selected (dense).

    An adaptive scheme has neither a cap nor a ratio: each step fetches what hides.
    """
    ratio = scheme.fetch_ratio
    if scheme.cap_blocks is not None:
        ratio = significant(scheme.admission_cap / scheme.budget_blocks)
    parts = {
        "budget_tokens": scheme.budget_tokens,
        "block_tokens": scheme.block_tokens,
        "cap_blocks": None if scheme.adaptive_cap else scheme.admission_cap,
        "fetch_ratio": None if scheme.adaptive_cap else (1.0 if ratio is None else ratio),
        "pool_tokens": scheme.pool_blocks * scheme.block_tokens,
    }
    return (
        parts if scheme.selects else {**dict.fromkeys(parts), "block_tokens": scheme.block_tokens}
    )


def describe_traces(scenario: Scenario) -> dict[str, Any]:
    """Return the names and the origin of the traces; `mixed` when recorded and synthetic."""
    traces = scenario.traces
    origins = sorted({trace.origin for trace in traces})
    return {
        "name": " + ".join(trace.name for trace in traces) or None,
        "origin": origins[0] if len(origins) == 1 else "mixed" if origins else None,
        "drafter": scenario.drafter,
        "steps": sum(trace.steps for trace in traces),
    }


def _typical(tokens: npt.NDArray[np.int64]) -> int | None:
    """Return the common value, or the rounded mean of values that differ."""
    return round(int(tokens.sum()) / len(tokens)) if len(tokens) else None


def _range(tokens: npt.NDArray[np.int64]) -> dict[str, float | int | None]:
    if not len(tokens):
        return {"min": None, "mean": None, "max": None}
    mean = significant(int(tokens.sum()) / len(tokens))
    return {"min": int(tokens.min()), "mean": mean, "max": int(tokens.max())}
