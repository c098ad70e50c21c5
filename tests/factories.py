"""Small, hand-made runs for the tests of metrics and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oasis_sim.engine.holdups import HOLDUPS
from oasis_sim.engine.result import (
    BOUNDS,
    STAGES,
    STATUS,
    MemoryPlan,
    Quality,
    RequestLog,
    RooflineBounds,
    RunResult,
    Slice,
    StepLog,
)
from oasis_sim.engine.scenario import Scenario
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from oasis_sim.trace import AttentionTrace
from oasis_sim.units import PS_PER_MS
from oasis_sim.workload import closed_loop

GB = 10**9
STEP_PS = 60 * PS_PER_MS


def tiny_trace(origin: str = "synthetic", name: str = "tiny") -> AttentionTrace:
    """Return a trace of three steps, one layer, one head, two blocks."""
    order = np.array([0, 1], dtype=np.uint16).reshape(1, 1, 1, 2)
    return AttentionTrace(
        meta={"name": name, "origin": origin, "block_tokens": 16},
        position=np.arange(48, 51, dtype=np.int32),
        token=np.arange(4, dtype=np.int32),
        use_order=np.repeat(order, 3, axis=0),
    )


def tiny_scenario(**changes: Any) -> Scenario:
    """Return a closed loop of two requests of four tokens on one H100."""
    scenario = Scenario(
        profile=load_profile("h100"),
        engine_name="vllm",
        model=load_model("qwen3-8b"),
        scheme=load_scheme("oasis"),
        traces=(tiny_trace(),),
        workload=closed_loop(2, 1_000, 4),
        concurrency=2,
    )
    return replace(scenario, **changes)


def tiny_steps(count: int = 4, **changes: Any) -> StepLog:
    """Return `count` steps of 60 ms; the first is dense and prefills, the others are sparse."""
    scenario_heads = 36 * 8
    sparse = np.full(count, 2, dtype=np.int32)
    sparse[:1] = 0
    blocks = sparse.astype(np.int64) * scenario_heads
    start = np.arange(count, dtype=np.int64) * STEP_PS
    stages = np.zeros((count, len(STAGES)), dtype=np.int64)
    stages[:, STAGES.index("attention")] = 20 * PS_PER_MS
    stages[1:, STAGES.index("transfer_wait")] = 3 * PS_PER_MS
    bound = np.full(count, BOUNDS.index("compute"), dtype=np.uint8)
    bound[:1] = BOUNDS.index("prefill")
    proxies = np.where(sparse > 0, 0.9, np.nan)
    steps = StepLog(
        start_ps=start,
        end_ps=start + STEP_PS,
        sparse_rows=sparse,
        dense_rows=2 - sparse,
        prefill_tokens=np.where(sparse == 0, 2_000, 0).astype(np.int64),
        context_tokens=np.full(count, 2_000, dtype=np.int64),
        admitted_blocks=4 * blocks,
        needed_blocks=5 * blocks,
        deferred_blocks=blocks,
        h2d_bytes=4 * blocks * 8_192,
        rank_h2d_bytes=(4 * blocks * 8_192)[:, None],
        d2h_bytes=np.full(count, 2 * 147_456, dtype=np.int64),
        network_bytes=np.zeros(count, dtype=np.int64),
        hbm_kv_bytes=np.full(count, 2 * GB, dtype=np.int64),
        host_kv_bytes=np.full(count, 3 * GB, dtype=np.int64),
        output_tokens=np.full(count, 2, dtype=np.int32),
        stage_ps=stages,
        bound=bound,
        overlap=proxies,
        mass=proxies,
        lost_mass=1 - proxies,
    )
    return replace(steps, **changes)


def tiny_requests(**changes: Any) -> RequestLog:
    """Return two completed requests: four tokens each, one per step."""
    log = RequestLog(
        arrival_ps=np.zeros(2, dtype=np.int64),
        prompt_tokens=np.full(2, 1_000, dtype=np.int64),
        output_tokens=np.full(2, 4, dtype=np.int64),
        generated_tokens=np.full(2, 4, dtype=np.int64),
        admitted_ps=np.zeros(2, dtype=np.int64),
        first_token_ps=np.full(2, STEP_PS, dtype=np.int64),
        finish_ps=np.full(2, 4 * STEP_PS, dtype=np.int64),
        preemptions=np.zeros(2, dtype=np.int32),
        status=np.full(2, STATUS.index("completed"), dtype=np.uint8),
    )
    return replace(log, **changes)


def tiny_slices() -> tuple[Slice, ...]:
    """Return one layer's compute and, beside it in time, one transfer; attention waits 1 ms."""
    start = STEP_PS
    marks = (
        ("compute", "qkv", 0, 1),
        ("compute", "attention", 2, 4),
        ("compute", "output_ffn", 4, 7),
        ("transfer", "transfer", 3, 6),
        ("pcie_h2d", "transfer", 3, 6),
    )
    return tuple(
        Slice(
            track,
            f"{stage} 0",
            start + begin * PS_PER_MS,
            start + end * PS_PER_MS,
            {"step": 1, "layer": 0, "stage": stage},
        )
        for track, stage, begin, end in marks
    )


def tiny_result(**changes: Any) -> RunResult:
    """Return a whole run of two requests over four steps; `changes` replace its parts."""
    result = RunResult(
        scenario=tiny_scenario(),
        steps=tiny_steps(),
        requests=tiny_requests(),
        slices=tiny_slices(),
        memory=MemoryPlan(
            hbm_capacity_bytes=80 * GB,
            hbm_usable_bytes=72 * GB,
            weights_bytes=16 * GB,
            reserved_bytes=2 * GB,
            kv_pool_bytes=54 * GB,
            host_capacity_bytes=200 * GB,
            dense_request_bytes=2 * GB,
            sparse_request_bytes=GB // 2,
            host_request_bytes=2 * GB,
        ),
        itl_ps=np.array([STEP_PS], dtype=np.int64),
        itl_count=np.array([6], dtype=np.int64),
        quality=Quality(0.98, 0.95, 0.9, 0.05, 0.1, "synthetic"),
        bounds=RooflineBounds(30.0, 66.0),
        schedule=None,
        notes=("two requests only",),
        held_ps=dict.fromkeys(HOLDUPS, 0) | {"requests": 4 * STEP_PS},
    )
    return replace(result, **changes)
