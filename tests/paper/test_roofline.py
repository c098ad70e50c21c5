"""Figure 1: roofs by hand, and no run above them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.model import ModelShape, load_model
from oasis_sim.network import load_network
from oasis_sim.paper.roofline import Roofline, RooflineCase, roofline
from oasis_sim.scheme import Scheme, load_scheme
from oasis_sim.workload import closed_loop
from tests.engine.scenarios import random_trace

KV = 147_456
WEIGHTS = 2 * (36 * (4096 * 128 * (32 + 16 + 32) + 3 * 4096 * 12_288) + 4096 * 151_936)


@cache
def h100() -> HardwareProfile:
    """Read the profile once."""
    return load_profile("h100")


@cache
def qwen3_8b() -> ModelShape:
    """Read the model once."""
    return load_model("qwen3-8b")


@cache
def scheme_of(name: str) -> Scheme:
    """Read a scheme once."""
    return load_scheme(name)


def case(context_tokens: int = 16_384, **changes: object) -> RooflineCase:
    """Return Qwen3-8B on one H100."""
    found = RooflineCase(h100(), qwen3_8b(), context_tokens, load_network("roce-400"))
    return replace(found, **changes)


def roofs_of(name: str, context_tokens: int = 16_384, **changes: object) -> Roofline:
    """Return the roofs of a scheme by name."""
    return roofline(case(context_tokens, **changes), scheme_of(name))


def test_dense_by_hand() -> None:
    """All KV of the context over HBM, nothing over PCIe or the network."""
    found = roofs_of("dense")
    hbm, pcie, network = found.tiers
    assert hbm.kv_bytes_per_token == 16_384 * KV
    assert hbm.tokens_per_s == pytest.approx(3.35e12 / (16_384 * KV))
    assert (pcie.tokens_per_s, network.tokens_per_s) == (None, None)
    assert found.tpot_min_s == pytest.approx(WEIGHTS / 3.35e12)


def test_oasis_by_hand() -> None:
    """2,064 attended tokens and a sixteenth of the context over HBM, the cap over PCIe."""
    hbm, pcie, network = roofs_of("oasis").tiers
    assert hbm.kv_bytes_per_token == 2064 * KV + 16_384 * KV / 16
    assert pcie.kv_bytes_per_token == 6 * 8 * 36 * 8192
    assert pcie.tokens_per_gb == pytest.approx(1e9 / (6 * 8 * 36 * 8192))
    assert pcie.tokens_per_s == pytest.approx(64e9 / (6 * 8 * 36 * 8192))
    assert network.tokens_per_s == pytest.approx(50e9 / (6 * 8 * 36 * 8192))


def test_quest_attends_as_many_tokens_as_oasis_and_keeps_all_kv() -> None:
    """All KV in HBM is not dense: blocks and keys are read, KV and keys are kept, nothing moves."""
    found = roofs_of("quest")
    hbm, pcie, _ = found.tiers
    assert hbm.kv_bytes_per_token == 2064 * KV + 16_384 * KV / 16
    assert pcie.tokens_per_s is None
    assert found.request_bytes == (16_384 + 16) * KV + 16_384 * KV // 16
    assert found.batch < roofs_of("dense").batch


def test_the_trace_replaces_the_cap() -> None:
    """With a trace, what it moves counts, and that is no more than the cap."""
    capped = roofs_of("oasis").tiers[1].kv_bytes_per_token
    moved = roofs_of("oasis", traces=(random_trace(blocks=256),)).tiers[1].kv_bytes_per_token
    assert 0 < moved <= capped


def test_tensor_parallel_holds_a_head_twice() -> None:
    """Four KV heads on eight GPUs: each GPU reads a quarter of the KV, not an eighth."""
    found = roofline(
        RooflineCase(
            load_profile("h100"), load_model("qwen3-235b-a22b"), 16_384, load_network("roce-400"), 8
        ),
        load_scheme("dense"),
    )
    assert found.tiers[0].kv_bytes_per_token == 16_384 * 48_128


def test_nothing_moves_within_the_budget() -> None:
    """A context of 128 blocks is resident as a whole; one block more can be missed."""
    within, over = roofs_of("oasis", 128 * 16), roofs_of("oasis", 129 * 16)
    assert within.tiers[1].kv_bytes_per_token == 0
    assert over.tiers[1].kv_bytes_per_token == 8 * 36 * 8192


@pytest.mark.parametrize("tp", [3, 5])
def test_heads_that_cannot_be_spread_are_refused(tp: int) -> None:
    """Eight KV heads over three GPUs is no layout that an engine has."""
    with pytest.raises(UsageError, match=f"evenly over {tp} GPUs"):
        roofs_of("dense", tp=tp)


def test_binding_roof_is_the_lowest_of_one_node() -> None:
    """The network is shown but binds nothing as long as blocks come from the own host."""
    found = roofs_of("oasis")
    assert found.binding == "pcie"
    assert [row["roof"] for row in found.rows() if row["binds"]] == ["pcie"]
    assert roofs_of("dense").binding == "hbm"


@given(context=st.integers(3000, 100_000))
def test_longer_contexts_permit_no_more(context: int) -> None:
    """No roof rises with the context; a sparse scheme's HBM roof is the higher one."""
    sparse, dense = roofs_of("oasis", context), roofs_of("dense", context)
    assert sparse.tiers[0].tokens_per_s > dense.tiers[0].tokens_per_s
    for near in (sparse, dense):
        far = roofs_of(near.scheme, context + 1000)
        assert far.batch <= near.batch
        assert far.tiers[0].tokens_per_s <= near.tiers[0].tokens_per_s


def test_a_context_that_does_not_fit_is_refused() -> None:
    """Not one request: the message names context and card."""
    with pytest.raises(RunFailed, match="not one request of 1,000,000 tokens fits h100"):
        roofs_of("dense", 1_000_000)


@pytest.mark.parametrize("name", ["oasis", "quest", "dense"])
@pytest.mark.parametrize("engine", ["roofline", "vllm", "gpu_exec"])
def test_the_batch_is_what_fits_in_a_run(name: str, engine: str) -> None:
    """Roofline and run know one memory: the pool of the same engine over the same request."""
    scheme = scheme_of(name)
    cost = CostModel(h100(), engine, qwen3_8b(), scheme, 1)
    plan = plan_memory(cost, 16_384)
    request = plan.sparse_request_bytes if scheme.selects else plan.dense_request_bytes
    fits = plan.kv_pool_bytes // request
    if scheme.offload:
        fits = min(fits, plan.host_capacity_bytes // plan.host_request_bytes)
    assert roofs_of(name, engine=engine).batch == fits


@pytest.mark.parametrize("name", ["oasis", "quest", "dense"])
@pytest.mark.parametrize("engine", ["roofline", "vllm"])
def test_no_run_is_above_its_roofs(name: str, engine: str) -> None:
    """The whole run, at its shortest context, stays below every roof that applies to it."""
    traces = (random_trace(blocks=256),) if scheme_of(name).selects else ()
    result = simulate(
        Scenario(
            profile=load_profile("h100"),
            engine_name=engine,
            model=load_model("qwen3-8b"),
            scheme=load_scheme(name),
            traces=traces,
            workload=closed_loop(16, 4096, 256),
            concurrency=16,
            schedule_steps=0,
        )
    )
    rate = result.steps.output_tokens.sum() / (int(result.steps.end_ps[-1]) / 1e12)
    roofs = roofs_of(name, 4096, traces=traces, engine=engine).roofs
    lowest = min(roof for key, roof in roofs.items() if roof is not None and key != "network")
    assert rate < lowest
