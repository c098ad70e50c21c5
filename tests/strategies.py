"""Hypothesis strategies shared by all tests, one section per part of the package."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace import NO_BLOCK, AttentionTrace

# --- traces and residency ---------------------------------------------------------------------


def random_orders(
    rng: np.random.Generator,
    complete: NDArray[np.int64],
    shape: tuple[int, int, int],
    jitter: float,
) -> NDArray[np.uint16]:
    """Return orders uint16[T, L, H, M] of the complete blocks, drifting from step to step.

    `complete` int64[T] is the number of blocks each step may name; `shape` is (L, H, M).
    """
    layers, heads, stored = shape
    score = rng.random((layers, heads, int(complete.max(initial=0))))
    orders = np.full((len(complete), *shape), NO_BLOCK, dtype=np.uint16)
    for step, blocks in enumerate(complete):
        score += rng.normal(0.0, jitter, score.shape)
        ranked = np.argsort(-score[:, :, :blocks], axis=-1, kind="stable")[:, :, :stored]
        orders[step, :, :, : ranked.shape[-1]] = ranked
    return orders


def make_trace(
    seed: int,
    *,
    steps: int = 6,
    layers: int = 2,
    heads: int = 2,
    stored: int = 12,
    block_tokens: int = 4,
    prompt: int = 60,
    drafters: tuple[str, ...] = ("ngram",),
    with_mass: bool = True,
    jitter: float = 0.2,
) -> AttentionTrace:
    """Make a small valid trace from random numbers."""
    rng = np.random.default_rng(seed)
    position = np.arange(prompt, prompt + steps, dtype=np.int32)
    complete = position.astype(np.int64) // block_tokens
    shape = (layers, heads, stored)
    blocks = int(complete.max()) + 1
    token = rng.integers(0, 1000, steps + 1).astype(np.int32)
    draft = {
        name: np.where(rng.random(steps) < 0.5, token[1:], token[1:] + 1).astype(np.int32)
        for name in drafters
    }
    accepted = {name: (draft[name] == token[1:]).astype(np.uint8) for name in drafters}
    mass = rng.integers(0, 200, (steps, layers, heads, blocks)).astype(np.uint8)
    mass[np.arange(blocks) > complete[:, None, None, None] + np.zeros_like(mass)] = 0
    meta = {
        "format": "oasis-trace",
        "version": 1,
        "origin": "recorded",
        "name": f"random-{seed}",
        "model": {
            "name": "random",
            "layers": layers,
            "kv_heads": heads,
            "query_heads": 2 * heads,
            "head_dim": 8,
        },
        "layer_ids": list(range(layers)),
        "layer_span": [None] * layers,
        "block_tokens": block_tokens,
        "prompt_tokens": prompt,
        "steps": steps,
        "stored_blocks": stored,
        "aggregation": {"bound": "max", "mass": "mean"},
        "mass_code": "log2-u8-16",
        "drafters": {name: {"accepted": float(accepted[name].mean())} for name in drafters},
        "text": {"name": "random", "licence": "CC0-1.0"},
        "recorder": "tests",
    }
    return AttentionTrace(
        meta=meta,
        position=position,
        token=token,
        use_order=random_orders(rng, complete, shape, jitter),
        pred_order={name: random_orders(rng, complete, shape, jitter) for name in drafters},
        accepted=accepted,
        draft_token=draft,
        mass=mass if with_mass else None,
    )


@st.composite
def attention_traces(draw: st.DrawFn) -> AttentionTrace:
    """Draw small valid traces of every shape: short contexts, no mass, none or two drafters."""
    return make_trace(
        draw(st.integers(0, 2**32 - 1)),
        steps=draw(st.integers(1, 12)),
        layers=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        stored=draw(st.integers(1, 20)),
        block_tokens=draw(st.sampled_from([1, 2, 4, 16])),
        prompt=draw(st.integers(1, 90)),
        drafters=draw(st.sampled_from([(), ("ngram",), ("skip", "n-gram 3")])),
        with_mass=draw(st.booleans()),
        jitter=draw(st.sampled_from([0.0, 0.05, 0.3, 3.0])),
    )


@st.composite
def residency_rules(draw: st.DrawFn, block_tokens: int | None = None) -> ResidencyRule:
    """Draw rules around every edge: no cap, cap 0, pool equal to and above the choice."""
    chosen = draw(st.integers(1, 12))
    pool = chosen + draw(st.integers(0, 8))
    return ResidencyRule(
        chosen_blocks=chosen,
        pool_blocks=pool,
        cap_blocks=draw(st.one_of(st.just(0), st.integers(0, chosen), st.just(pool + 1))),
        sink_blocks=draw(st.integers(0, 2)),
        recent_blocks=draw(st.integers(0, 3)),
        block_tokens=block_tokens or draw(st.sampled_from([1, 2, 4, 16])),
        on_demand=draw(st.booleans()),
    )
