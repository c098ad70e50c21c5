"""The contract of summary.json, on runs small enough to check by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oasis_sim.engine.result import BOUNDS, STAGES, STATUS, Quality, RunResult
from oasis_sim.metrics import summarise
from oasis_sim.scheme import load_scheme, with_options
from tests.factories import (
    GB,
    STEP_PS,
    tiny_requests,
    tiny_result,
    tiny_scenario,
    tiny_steps,
    tiny_trace,
)

CONTRACT: dict[str, Any] = {
    "schema_version": None,
    "oasis_sim_version": None,
    "scenario": {
        "profile": None,
        "engine": None,
        "model": None,
        "scheme": None,
        "trace": {"name": None, "origin": None},
        "budget_tokens": None,
        "block_tokens": None,
        "cap_blocks": None,
        "fetch_ratio": None,
        "pool_tokens": None,
        "context_tokens": None,
        "output_tokens": None,
        "concurrency": None,
        "requests": None,
        "tp": None,
        "seed": None,
    },
    "throughput": dict.fromkeys(
        ("output_tokens_per_s", "requests_per_s", "output_tokens_per_s_per_gpu")
    ),
    "latency": {
        name: dict.fromkeys(("mean", "p50", "p90", "p99"))
        for name in ("tpot_ms", "ttft_ms", "itl_ms", "e2e_ms")
    },
    "steps": {
        "count": None,
        "step_ms": dict.fromkeys(("mean", "p50", "p90", "p99")),
        "running_batch": {"mean": None, "max": None},
    },
    "stages_ms_per_step": dict.fromkeys(STAGES),
    "links": {
        name: dict.fromkeys(("bytes_per_step_mean", "gb_per_s_mean", "utilisation"))
        for name in ("pcie_h2d", "pcie_d2h", "network")
    },
    "tiers": {
        "hbm": dict.fromkeys(("capacity_bytes", "weights_bytes", "peak_bytes")),
        "host": {"capacity_bytes": None},
        "remote": {"capacity_bytes": None},
    },
    "residency": dict.fromkeys(("needed_blocks", "admitted_blocks", "deferred_blocks", "hit_rate")),
    "quality": {
        "topk_agreement": None,
        "attention_mass": {"mean": None, "p5": None},
        "lost_mass": {"mean": None, "p95": None},
    },
    "requests": dict.fromkeys(("arrived", "completed", "rejected", "preempted", "running_at_end")),
    "bounds": dict.fromkeys(("step_ms_lower", "output_tokens_per_s_upper")),
}


def assert_has_keys(expected: dict[str, Any], actual: dict[str, Any], path: str = "") -> None:
    """Fail with the dotted path of the first key that the contract names and nobody wrote."""
    for key, below in expected.items():
        assert key in actual, f"{path}{key} is missing"
        if isinstance(below, dict):
            assert_has_keys(below, actual[key], f"{path}{key}.")


def empty_result() -> RunResult:
    """Return a run whose only request was turned away: no step at all."""
    never = np.array([-1], dtype=np.int64)
    requests = tiny_requests(
        arrival_ps=np.zeros(1, dtype=np.int64),
        prompt_tokens=np.array([10**6]),
        output_tokens=np.array([4]),
        generated_tokens=np.zeros(1, dtype=np.int64),
        admitted_ps=never,
        first_token_ps=never,
        finish_ps=never,
        preemptions=np.zeros(1, dtype=np.int32),
        status=np.array([STATUS.index("rejected")], dtype=np.uint8),
    )
    nothing = np.zeros(0, dtype=np.int64)
    return tiny_result(
        steps=tiny_steps(0),
        requests=requests,
        slices=(),
        itl_ps=nothing,
        itl_count=nothing,
        quality=Quality(None, None, None, None, None, "none"),
    )


@pytest.mark.parametrize("result", [tiny_result(), empty_result()], ids=["run", "no step"])
def test_every_key_of_the_contract_is_there_and_nothing_is_nan(result: RunResult) -> None:
    """Other programs rely on the keys; JSON without NaN is what they can read."""
    summary = summarise(result)
    assert_has_keys(CONTRACT, summary)
    json.dumps(summary, allow_nan=False)


def test_throughput_and_latency_by_hand() -> None:
    """Eight tokens in four steps of 60 ms; each request waits one step, then 60 ms a token."""
    summary = summarise(tiny_result())
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(8 / 0.240)
    assert summary["throughput"]["requests_per_s"] == pytest.approx(2 / 0.240)
    assert summary["latency"]["tpot_ms"]["mean"] == 60.0
    assert summary["latency"]["ttft_ms"]["p50"] == 60.0
    assert summary["latency"]["e2e_ms"]["p99"] == 240.0
    assert summary["latency"]["itl_ms"]["samples"] == 6


def test_throughput_times_tpot_is_the_running_batch_while_all_decode() -> None:
    """Little's law in steady decode: tokens per second x time per token = rows."""
    steps = tiny_steps(3)
    requests = tiny_requests(
        generated_tokens=np.full(2, 3),
        output_tokens=np.full(2, 3),
        finish_ps=np.full(2, 3 * STEP_PS),
    )
    summary = summarise(tiny_result(steps=steps, requests=requests))
    tokens_per_s = summary["throughput"]["output_tokens_per_s"]
    tpot_s = summary["latency"]["tpot_ms"]["mean"] / 1_000
    assert summary["steps"]["running_batch"]["mean"] == pytest.approx(tokens_per_s * tpot_s)


def test_tensor_parallel_throughput_is_split_over_the_gpus() -> None:
    """Per-GPU throughput divides by the GPUs of the model."""
    whole = summarise(tiny_result())["throughput"]
    split = summarise(tiny_result(scenario=tiny_scenario(tp=8)))["throughput"]
    assert split["output_tokens_per_s"] == whole["output_tokens_per_s"]
    assert split["output_tokens_per_s_per_gpu"] == pytest.approx(whole["output_tokens_per_s"] / 8)


def test_residency_is_per_row_head_layer_and_step() -> None:
    """The factory misses 5 blocks, fetches 4 and leaves 1 for each of 128 predicted."""
    residency = summarise(tiny_result())["residency"]
    assert residency == {
        "chosen_blocks": 128,
        "needed_blocks": 5.0,
        "admitted_blocks": 4.0,
        "deferred_blocks": 1.0,
        "hit_rate": pytest.approx(1 - 5 / 128),
    }


def test_links_are_set_against_what_the_transport_reaches() -> None:
    """Bytes per step are means; utilisation is the mean rate over the stated limit."""
    link = summarise(tiny_result())["links"]["pcie_h2d"]
    blocks = 2 * 36 * 8 * 4
    assert link["bytes_total"] == 3 * blocks * 8_192
    assert link["bytes_per_step_mean"] == pytest.approx(3 * blocks * 8_192 / 4)
    assert link["gb_per_s_mean"] == pytest.approx(3 * blocks * 8_192 / 0.240 / 1e9)
    assert link["utilisation"] == pytest.approx(link["gb_per_s_mean"] / link["limit_gb_per_s"])
    assert link["limit_gb_per_s"] <= link["nominal_gb_per_s"] == 64.0


def test_what_bound_each_step_is_shared_by_steps_and_by_time() -> None:
    """A long step weighs more in the share of time than in the share of steps."""
    steps = tiny_steps()
    end = steps.end_ps.copy()
    end[-1] += 2 * STEP_PS
    bound = steps.bound.copy()
    bound[-1] = BOUNDS.index("transfer")
    shares = summarise(tiny_result(steps=replace(steps, end_ps=end, bound=bound)))["step_bound"]
    assert shares["transfer"] == {"share_of_steps": 0.25, "share_of_time": 0.5}
    for kind in ("share_of_steps", "share_of_time"):
        assert sum(share[kind] for share in shares.values()) == pytest.approx(1)


def test_peak_of_a_tier_is_weights_reserve_and_the_fullest_step() -> None:
    """The peak counts what lies in HBM beside KV."""
    held = np.array([1, 5, 3, 2], dtype=np.int64) * GB
    tiers = summarise(tiny_result(steps=tiny_steps(hbm_kv_bytes=held)))["tiers"]
    assert tiers["hbm"]["peak_kv_bytes"] == 5 * GB
    assert tiers["hbm"]["peak_bytes"] == (16 + 2 + 5) * GB
    assert tiers["host"]["peak_bytes"] == 3 * GB


@pytest.mark.parametrize(
    ("options", "ratio", "cap"),
    [
        ({}, 0.05, 6),
        ({"fetch_ratio": 0.2}, 0.2, 25),
        ({"fetch_ratio": 1.0}, 1.0, 128),
        ({"cap_blocks": 32}, 0.25, 32),
    ],
)
def test_the_resolved_cap_is_reported(options: dict[str, Any], ratio: float, cap: int) -> None:
    """A cap given in blocks shows its ratio, a ratio its blocks."""
    scheme = with_options(load_scheme("oasis"), **options)
    scenario = summarise(tiny_result(scenario=tiny_scenario(scheme=scheme)))["scenario"]
    assert (scenario["fetch_ratio"], scenario["cap_blocks"]) == (ratio, cap)


def test_an_adaptive_scheme_has_no_cap() -> None:
    """Neither a number of blocks nor a ratio says what hides."""
    scheme = load_scheme("oasis-adaptive")
    scenario = summarise(tiny_result(scenario=tiny_scenario(scheme=scheme)))["scenario"]
    assert (scenario["fetch_ratio"], scenario["cap_blocks"]) == (None, None)
    assert scenario["budget_tokens"] == 2048


def test_dense_has_no_working_set() -> None:
    """Where nothing is selected the sizes of a selection are null, not zero."""
    scenario = summarise(tiny_result(scenario=tiny_scenario(scheme=load_scheme("dense"))))[
        "scenario"
    ]
    assert scenario["budget_tokens"] is None
    assert scenario["cap_blocks"] is None


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        (("synthetic",), "synthetic"),
        (("recorded", "recorded"), "recorded"),
        (("recorded", "synthetic"), "mixed"),
        ((), None),
    ],
)
def test_origin_of_the_traces_is_never_hidden(
    origins: tuple[str, ...], expected: str | None
) -> None:
    """A run over both kinds is mixed, never recorded."""
    traces = tuple(tiny_trace(origin, f"t{i}") for i, origin in enumerate(origins))
    trace = summarise(tiny_result(scenario=tiny_scenario(traces=traces)))["scenario"]["trace"]
    assert trace["origin"] == expected
