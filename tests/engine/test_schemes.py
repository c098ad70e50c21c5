"""What sets the schemes apart: which bytes move, when, and what stays in HBM."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from oasis_sim.engine import RunResult, simulate
from oasis_sim.engine.costs import CostModel, GpuShare
from oasis_sim.engine.memory import footprint
from oasis_sim.engine.walks import build_walks, cap_ladder
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.metrics import check_conservation
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme, scheme_names, with_options
from tests.engine.scenarios import TINY, card, random_trace, scenario, small_scheme

QWEN = load_model("qwen3-8b")
KIB = 1024


def with_link(gb_per_s: float) -> HardwareProfile:
    """Return a card whose gather moves this much, at no fixed cost."""
    profile = card(8 * 10**9)
    costs = profile.engine("vllm")
    gather = costs.transport("sm_gather")
    rates = tuple(gb_per_s * 1e9 for _ in gather.bytes_per_s.y)
    gather = dataclasses.replace(
        gather, bytes_per_s=dataclasses.replace(gather.bytes_per_s, y=rates), fixed_ps=0
    )
    costs = dataclasses.replace(costs, transports={**costs.transports, "sm_gather": gather})
    return dataclasses.replace(profile, engines={**profile.engines, "vllm": costs})


def full_steps(result: RunResult) -> np.ndarray:
    """Mark the steps with all three rows sparse and no prefill."""
    return (result.steps.sparse_rows == 3) & (result.steps.prefill_tokens == 0)


@pytest.mark.parametrize("name", scheme_names())
def test_every_preset_keeps_the_laws(name: str) -> None:
    """Clock, requests, tokens, blocks and bytes per tier of each preset add up."""
    check_conservation(simulate(scenario(name)))


@pytest.mark.parametrize(
    ("name", "unit", "block"),
    [
        ("oasis", 8 * KIB, 8 * KIB),
        ("oasis-fp8", 4 * KIB, 4 * KIB),
        ("shadowkv", 2 * KIB, 4 * KIB),
        ("infinigen", 512, 8 * KIB),
        ("freekv", 16 * KIB, 8 * KIB),
        ("hisparse", 512, 8 * KIB),
    ],
)
def test_units_as_published(name: str, unit: int, block: int) -> None:
    """Bytes of one copy and of one block of a head of Qwen3-8B."""
    share, scheme = GpuShare(QWEN, 1), load_scheme(name)
    assert (unit, block) == (share.unit_bytes(scheme), share.block_bytes(scheme))


def test_shadowkv_keeps_its_factors_in_hbm_and_its_values_in_the_host() -> None:
    """11,520 bytes of factors and 9,216 of landmarks per token; half of the KV in the host."""
    cost = CostModel(load_profile("h100"), "shadowkv", QWEN, load_scheme("shadowkv"), 1)
    sizes = footprint(cost)
    assert 36 * 160 * 2 + 147_456 // 16 == sizes.compressed_token
    assert 147_456 // 2 == sizes.host_token
    fixed = 147_456 * (2048 + 27 * 16 + 4096) + 36 * 160 * 1024 * 2
    assert fixed == sizes.sparse_fixed


@pytest.mark.parametrize(
    ("name", "tp", "size"),
    [("qwen3-8b", 1, 4_096), ("qwen3-8b", 2, 2_048), ("qwen3-235b-a22b", 1, 2_048)],
)
def test_draft_kv_is_that_of_one_layer(name: str, tp: int, size: int) -> None:
    """As an EAGLE-3 head has: K and V of the model's KV heads in 16 bits, on each GPU its share."""
    share, scheme = GpuShare(load_model(name), tp), load_scheme("oasis")
    assert share.draft_bytes_token(scheme) == size
    assert share.draft_bytes_token(load_scheme("on-demand")) == 0


def test_a_scheme_may_give_its_own_draft_kv() -> None:
    """In bytes of the whole model, shared out over the GPUs; 0 is a drafter without KV."""
    for given, size in ((6_000, 1_500), (0, 0)):
        scheme = with_options(load_scheme("oasis"), draft_kv_bytes_per_token=given)
        assert GpuShare(QWEN, 4).draft_bytes_token(scheme) == size


def test_fp8_halves_bytes_and_not_blocks() -> None:
    """The same blocks move, in half of the bytes, and the host holds half."""
    whole, half = simulate(scenario("oasis")), simulate(scenario("oasis-fp8"))
    moved = (full_steps(whole).sum(), full_steps(half).sum())
    assert moved[0] > 0
    for log, blocks in ((whole, 1), (half, 2)):
        size = 2 * TINY.head_dim * 2 * 16 // blocks
        assert np.array_equal(log.steps.h2d_bytes, log.steps.admitted_blocks * size)
    assert 2 * half.memory.host_request_bytes == whole.memory.host_request_bytes


def test_quest_selects_and_moves_nothing() -> None:
    """All KV and its index stay in HBM; rows attend a selection, bytes stay where they are."""
    result = simulate(scenario("quest"))
    assert int(result.steps.sparse_rows.max()) == 3
    for moved in (result.steps.h2d_bytes, result.steps.d2h_bytes, result.steps.host_kv_bytes):
        assert not moved.any()
    assert result.memory.sparse_request_bytes > result.memory.dense_request_bytes
    assert result.quality.topk_agreement == 1.0


def test_infinigen_fetches_its_whole_selection_in_every_step() -> None:
    """Nothing is reused: chosen blocks x heads x layers x rows, step for step."""
    result = simulate(scenario("infinigen"))
    rows = result.steps.sparse_rows.astype(np.int64)
    expected = rows * 32 * TINY.kv_heads * TINY.layers
    assert np.array_equal(expected, result.steps.admitted_blocks)


def test_a_larger_pool_fetches_less_and_agrees_more() -> None:
    """Twice the resident blocks, at the same cap."""
    small, large = simulate(scenario("oasis")), simulate(scenario("oasis-pool"))
    moved = [run.steps.admitted_blocks[full_steps(run)].mean() for run in (small, large)]
    assert moved[1] < moved[0]
    assert (large.quality.topk_agreement or 0) > (small.quality.topk_agreement or 0)


def test_correction_shows_as_waiting() -> None:
    """The more is corrected on the critical path, the longer attention waits."""
    waits = []
    for share in (0.0, 0.5, 1.0):
        scheme = dataclasses.replace(small_scheme("freekv"), correction_share=share)
        result = simulate(scenario(scheme))
        waits.append(result.steps.stage_ps[full_steps(result), -1].mean())
    assert waits[0] < waits[1] < waits[2]


@pytest.mark.parametrize("name", ["shadowkv", "infinigen", "freekv"])
def test_kv_that_leaves_in_prefill_is_gone_at_the_first_token(name: str) -> None:
    """No dense step, and the prompt's KV is counted over the link once."""
    result = simulate(scenario(name))
    assert not result.steps.dense_rows.any()
    scheme = result.scenario.scheme
    token = GpuShare(TINY, 1).host_bytes_token(scheme)
    tokens = result.requests.prompt_tokens.sum() + result.requests.output_tokens.sum()
    # The last token of a request is never a key.
    assert int(result.steps.d2h_bytes.sum()) == int(tokens - len(result.requests)) * token


@pytest.mark.parametrize("gb_per_s", [0.5, 2.0, 8.0, 400.0])
def test_adaptive_cap_takes_what_hides(gb_per_s: float) -> None:
    """No slower than the least it may fetch by more than what cannot hide, never above the most.

    With a link that hides everything it fetches all missing blocks that are worth it.
    """
    profile = with_link(gb_per_s)
    adaptive = scenario("oasis-adaptive", profile=profile)
    share = GpuShare(adaptive.model, adaptive.tp)
    walks = build_walks(adaptive.traces, adaptive.scheme, share, None, 0)
    least, *_, most = walks.tables.rung_blocks.mean(axis=1)
    fixed = [
        scenario(small_scheme("oasis", cap_blocks=cap, fetch_ratio=None), profile=profile)
        for cap in (0, adaptive.scheme.chosen_blocks)
    ]
    runs = [simulate(case) for case in (fixed[0], adaptive, fixed[1])]
    step = [(r.steps.end_ps - r.steps.start_ps)[full_steps(r)].mean() for r in runs]
    full = full_steps(runs[1])
    moved = (runs[1].steps.admitted_blocks / runs[1].steps.sparse_rows.clip(1))[full].mean()
    assert 0.8 * least <= moved <= 1.1 * most
    assert step[1] <= max(step[0] * 1.05, step[2])
    if gb_per_s == 400.0:
        assert moved == pytest.approx(most, rel=0.1)


def test_accepted_drafts_are_kept() -> None:
    """Every draft accepted: two tokens per row and sparse step, none beyond what was asked for."""
    plain, fast = simulate(scenario("oasis")), simulate(scenario("oasis-speculative"))
    assert np.array_equal(plain.requests.generated_tokens, fast.requests.generated_tokens)
    full = full_steps(fast)
    assert set(fast.steps.output_tokens[full].tolist()) <= {4, 5, 6}
    assert 6 == np.median(fast.steps.output_tokens[full])
    assert full.sum() < 0.6 * full_steps(plain).sum()
    between = int(fast.requests.output_tokens.sum()) - len(fast.requests)
    assert between == int(fast.itl_count.sum())
    assert between == int(plain.itl_count.sum())


def test_rejected_drafts_change_nothing() -> None:
    """A trace whose drafts are all rejected gives the steps of plain lookahead."""
    trace = random_trace()
    trace = dataclasses.replace(trace, accepted={"next": np.zeros(trace.steps, np.uint8)})
    plain, fast = (
        simulate(dataclasses.replace(scenario(name), traces=(trace,)))
        for name in ("oasis", "oasis-speculative")
    )
    for field in ("output_tokens", "admitted_blocks", "context_tokens", "hbm_kv_bytes"):
        assert np.array_equal(getattr(plain.steps, field), getattr(fast.steps, field)), field


def test_ladder_of_caps() -> None:
    """From one block of the best tenth to all blocks; a fixed cap is one rung."""
    rules = cap_ladder(load_scheme("oasis-adaptive"))
    rungs = [(rule.cap_blocks, rule.depth) for rule in rules]
    assert rungs == sorted(set(rungs))
    assert [(1, 13), (1, 32), (1, 64), (1, 96), (1, 128), (2, 128)] == rungs[:6]
    assert (128, 128) == rungs[-1]
    assert [(6, 128)] == [(r.cap_blocks, r.depth) for r in cap_ladder(load_scheme("oasis"))]
    short = with_options(load_scheme("oasis-adaptive"), budget_tokens=80)
    assert [1, 1, 1, 1, 1, 2, 3, 4, 5] == [rule.cap_blocks for rule in cap_ladder(short)]


def test_higher_rungs_admit_more() -> None:
    """Blocks rise from rung to rung, so that the widest that hides can be found."""
    found = build_walks(
        (random_trace(),), small_scheme("oasis-adaptive"), GpuShare(TINY, 1), None, 0
    )
    blocks = found.tables.rung_blocks.sum(axis=1)
    assert (np.diff(blocks) >= 0).all()
    assert blocks[0] < blocks[4] < blocks[-1]


def test_walks_are_built_once() -> None:
    """Runs with the same trace, rule and model share their tables."""
    trace = random_trace()
    first, second = (
        build_walks((trace,), small_scheme("oasis"), GpuShare(TINY, tp), None, seed)
        for tp, seed in ((1, 0), (2, 3))
    )
    assert first.walks[0] is second.walks[0]
    other = build_walks((trace,), small_scheme("oasis-pool"), GpuShare(TINY, 1), None, 0)
    assert first.walks[0] is not other.walks[0]


@pytest.mark.parametrize(
    "name",
    [
        "quest",
        "infinigen",
        "shadowkv",
        "freekv",
        "oasis-adaptive",
        "oasis-shared",
        "belady",
        "oasis-speculative",
    ],
)
def test_what_a_schedule_cannot_hold_gives_none(name: str) -> None:
    """Replay moves whole blocks of K and V from one list: other schemes leave no schedule."""
    assert simulate(scenario(name)).schedule is None
