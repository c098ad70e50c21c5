"""What a decode host needs of a remote KV cache: counted like sets, extrapolated from the trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.residency.plain import first_fetches_plain
from oasis_sim.residency.predict import draft_order, recorded_path
from oasis_sim.residency.remote import (
    coverage,
    first_fetches,
    fit_growth,
    grown,
    trace_depth,
)
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.residency.simulate import simulate_path
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.trace.synth import synthesize
from oasis_sim.trace.synth_parameters import SynthParameters
from tests.strategies import make_trace, residency_rules

OASIS = ResidencyRule(128, 128, 6)
UNCAPPED = ResidencyRule(128, 128, 128)
BLOCK_GIB = 65_536 / 2**30
"""A block of all eight KV heads of one layer of Qwen3-8B."""


@dataclass(frozen=True)
class Shape:
    """Stand in for a model: layers and KV heads."""

    layers: int = 36
    kv_heads: int = 8


@pytest.fixture(scope="module")
def aime() -> AttentionTrace:
    """Return the shipped trace."""
    return load_trace("aime.jsonl")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), rule=residency_rules(block_tokens=4), blocks=st.integers(0, 30))
def test_first_fetches_are_those_of_sets(seed: int, rule: ResidencyRule, blocks: int) -> None:
    """The compiled count is the plain one; nothing is fetched twice, no layer beyond its blocks."""
    trace = make_trace(seed, steps=8, layers=3, heads=2, stored=25)
    path = recorded_path(trace, ahead=1)
    moves = simulate_path(trace.use_order, draft_order(trace), path, rule, moves=True).moves
    assert moves is not None
    union, fetched = first_fetches(moves, trace.steps, blocks)
    plain_union, plain_fetched = first_fetches_plain(moves, trace.steps, blocks)
    np.testing.assert_array_equal(plain_union, union)
    np.testing.assert_array_equal(plain_fetched, fetched)
    assert (union + fetched.sum(axis=0) <= blocks).all()


@given(alpha=st.floats(0.02, 3.0), tau=st.floats(1.0, 500.0), steps=st.integers(8, 64))
def test_growth_is_found_again(alpha: float, tau: float, steps: int) -> None:
    """The fit reproduces a curve of its own form within its steps."""
    share = grown(np.arange(1.0, steps + 1)[:, None], np.array([alpha]), tau)
    found, scale = fit_growth(share)
    again = grown(np.arange(1.0, steps + 1)[:, None], found, scale)
    np.testing.assert_allclose(share[share < 0.999], again[share < 0.999], rtol=0.03, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rule=residency_rules(block_tokens=4),
    predictor=st.sampled_from(["draft", "previous", "current", "oracle"]),
    blocks=st.integers(1, 500),
)
def test_a_host_never_holds_more_than_the_prompt_and_never_less(
    seed: int, rule: ResidencyRule, predictor: str, blocks: int
) -> None:
    """Held blocks grow with the steps, from the union on, and end at the prompt's."""
    trace = make_trace(seed, steps=8, layers=3, heads=2, stored=25)
    found = coverage(trace, rule, predictor, None, Shape(5, 3), blocks)
    held = found.held_blocks(blocks, rule.chosen_blocks, np.array([0, 1, 10, 10**6]))
    assert (4, 5) == held.shape
    assert (np.diff(held, axis=0) >= 0).all()
    np.testing.assert_array_equal(found.union_blocks(blocks, rule.chosen_blocks), held[0])
    assert (held[0] >= min(rule.chosen_blocks, blocks)).all()
    assert (held[-1] <= blocks + 1e-9).all()


def test_published_union_and_drift(aime: AttentionTrace) -> None:
    """24K context, 2,048 tokens: union 0.52 GiB (within 10 %), drift 2.03 GiB (within 15 %)."""
    found = coverage(aime, UNCAPPED, "draft", None, Shape(), 1536)
    union = found.union_blocks(1536, 128).sum() * BLOCK_GIB
    drift = found.held_blocks(1536, 128, 2048).sum() * BLOCK_GIB - union
    assert union == pytest.approx(0.52, rel=0.10)
    assert drift == pytest.approx(2.03, rel=0.15)


def test_published_host_memory_with_a_cap(aime: AttentionTrace) -> None:
    """Mean over a request's life at ratio 0.05, generated KV included: 1.54 GiB within 10 %."""
    found = coverage(aime, OASIS, "draft", None, Shape(), 1536)
    life = np.arange(2048)
    prompt = found.held_blocks(1536, 128, life).sum(axis=1).mean() * BLOCK_GIB
    generated = 1024 / 16 * 36 * BLOCK_GIB
    assert prompt + generated == pytest.approx(1.54, rel=0.10)


def test_a_cap_fetches_less(aime: AttentionTrace) -> None:
    """Fewer admissions leave fewer blocks to fetch."""
    caps = [dataclasses.replace(OASIS, cap_blocks=cap) for cap in (1, 6, 25, 128)]
    drift = [coverage(aime, r, "draft", None, Shape(), 1536).later(2048).mean() for r in caps]
    assert drift == sorted(drift)


def test_heads_that_agree_need_less(aime: AttentionTrace) -> None:
    """The union comes from the trace: with heads on their own it is far larger."""
    alone = SynthParameters(recorded_layers=2, recorded_heads=8, steps=4, head_correlation=0.0)
    apart = coverage(synthesize(alone), UNCAPPED, "draft", None, Shape(), 1536)
    alike = coverage(aime, UNCAPPED, "draft", None, Shape(), 1536)
    assert apart.union.mean() > 2 * alike.union.mean()


RECORDED = [f"{model}-{text}.npz" for model in ("smollm2", "gemma3-270m")
            for text in ("code", "prose", "question")]  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_go_on_as_their_first_half_says(name: str) -> None:
    """Fitted to 31 steps, the share reached after 62 is right within 0.06."""
    trace = load_trace(name)
    rule = ResidencyRule(32, 32, 32)
    shape = Shape(trace.model_layers, trace.kv_heads)
    share = coverage(trace, rule, "draft", None, shape, 400).recorded
    half = len(share) // 2
    alpha, tau = fit_growth(share[:half])
    later = grown(np.array([float(len(share))])[:, None], alpha, tau)
    assert later.mean() == pytest.approx(share[-1].mean(), abs=0.06)


def test_depth_follows_the_context(aime: AttentionTrace) -> None:
    """A trace of 768 blocks stands for 1,536 at half its depth; deeper than stored is cut."""
    assert [64, 128, 256, 1] == [trace_depth(aime, OASIS, n) for n in (1536, 768, 100, 10**9)]
