"""Bounds, orders, masses and working sets against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")

from oasis_sim.record.attention import visible  # noqa: E402
from oasis_sim.record.options import BOUND_JOINS  # noqa: E402
from oasis_sim.record.orders import (  # noqa: E402
    block_extremes,
    block_mass,
    bound_scores,
    joined_scores,
    listed_blocks,
    order_blocks,
)
from oasis_sim.record.working_set import WorkingSetRule, attended_blocks  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)


def plain_score(bounds: np.ndarray, join: str, scaling: float) -> np.ndarray:
    """Join the bounds of a group's heads, [G, N], by the words of the documentation."""
    if join == "softmax-mean":
        weights = np.exp(scaling * (bounds - bounds.max(axis=1, keepdims=True)))
        return np.log((weights / weights.sum(axis=1, keepdims=True)).sum(axis=0))
    return {"max": bounds.max, "mean": bounds.mean, "min": bounds.min}[join](axis=0)


@pytest.mark.parametrize("join", BOUND_JOINS)
@given(seed=SEEDS, group=st.integers(1, 3), complete=st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_joined_scores_agree_with_plain_definitions(join, seed, group, complete):
    """Each head's bounds are joined over the listed blocks only, whatever lies beyond them."""
    keys, query = random_tensor(seed, 2, 24, 8), random_tensor(seed + 1, 2 * group, 1, 8)
    low, high = block_extremes(keys, 4)
    listed = listed_blocks(torch.tensor([complete * 4]), 6, 4, None)
    got = joined_scores(query, low, high, listed, join, 0.3)[0, :, :complete].numpy()
    blocks = keys.double().numpy().reshape(2, 6, 4, 8)[:, :complete]
    for head in range(2):
        heads = query[head * group : (head + 1) * group, 0].double().numpy()
        below, above = blocks[head].min(axis=1), blocks[head].max(axis=1)
        bounds = np.stack([np.maximum(q * below, q * above).sum(axis=-1) for q in heads])
        np.testing.assert_allclose(plain_score(bounds, join, 0.3), got[head], atol=1e-9)


def test_mass_of_the_largest_head():
    """The join max takes each block's largest share among a group's heads."""
    keys, query = random_tensor(1, 1, 10, 4), random_tensor(2, 3, 1, 4)
    where = {"scaling": 0.5, "block_tokens": 4, "span": None}
    got = block_mass(query, keys, torch.tensor([9]), join="max", **where)[0, 0]
    alone = [block_mass(query[[h]], keys, torch.tensor([9]), **where)[0, 0] for h in range(3)]
    np.testing.assert_allclose(torch.stack(alone).amax(dim=0).numpy(), got.numpy(), atol=1e-12)


def random_tensor(seed: int, *shape: int):
    """Return a float32 tensor of normal numbers."""
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return torch.from_numpy(values)


@given(seed=SEEDS, blocks=st.integers(1, 6), size=st.integers(1, 5), group=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_bound_is_above_every_score_of_the_block(seed, blocks, size, group):
    """No token of a block scores higher, for any query head of the group."""
    heads, rows, dim = 2, 3, 8
    keys = random_tensor(seed, heads, blocks * size, dim)
    query = random_tensor(seed + 1, heads * group, rows, dim)
    bound = bound_scores(query, *block_extremes(keys, size))
    grouped = query.double().reshape(heads, group, rows, dim)
    scores = torch.einsum("hgrd,hsd->rhgs", grouped, keys.double())
    best = scores.reshape(rows, heads, group, blocks, size).amax(dim=(2, 4))
    assert bool((best <= bound + 1e-9).all())


def test_bound_of_one_token_blocks_is_the_score():
    """With one token per block minimum and maximum are its key."""
    keys, query = random_tensor(1, 1, 5, 4), random_tensor(2, 1, 3, 4)
    bound = bound_scores(query, *block_extremes(keys, 1))
    np.testing.assert_allclose(
        (query[0].double() @ keys[0].double().T).numpy(), bound[:, 0].numpy(), atol=1e-12
    )


def test_incomplete_last_block_has_no_extremes():
    """Only whole blocks are summarised."""
    low, high = block_extremes(random_tensor(3, 2, 11, 4), 4)
    assert (2, 2, 4) == tuple(low.shape) == tuple(high.shape)


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4),
    position=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_order_is_by_score_then_id(rows, position):
    """Equal scores come by ascending id; blocks that are not complete are absent."""
    scores = torch.tensor(rows, dtype=torch.float64)[:, None]
    positions = torch.full((len(rows),), position)
    order = order_blocks(scores, listed_blocks(positions, 6, 8, None))
    complete = min(position // 8, 6)
    for row, got in zip(rows, order[:, 0].tolist(), strict=True):
        expected = sorted(range(complete), key=lambda block, row=row: (-row[block], block))
        assert [*expected, *[-1] * (6 - complete)] == got


def test_span_keeps_the_blocks_that_are_partly_in_sight():
    """Position 41 with a span of 10 sees tokens 32 to 41: blocks of 4 from number 8."""
    listed = listed_blocks(torch.tensor([41]), 12, 4, 10)
    assert [8, 9] == torch.nonzero(listed[0]).flatten().tolist()
    seen = visible(torch.tensor([41]), torch.arange(44), 10)
    assert list(range(32, 42)) == torch.nonzero(seen[0]).flatten().tolist()


@given(seed=SEEDS, tokens=st.integers(5, 40), span=st.none() | st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_mass_is_a_softmax_by_block(seed, tokens, span):
    """Mass sums to one, nothing lies beyond the row's position, and the definition holds."""
    keys, query = random_tensor(seed, 2, tokens, 4), random_tensor(seed + 1, 6, 2, 4)
    positions = torch.tensor([tokens - 3, tokens - 1])
    mass = block_mass(query, keys, positions, scaling=0.5, block_tokens=4, span=span)
    np.testing.assert_allclose(np.ones((2, 2)), mass.sum(dim=-1).numpy(), atol=1e-12)
    assert (2, 2, tokens // 4 + 1) == tuple(mass.shape)
    for row, position in enumerate(positions.tolist()):
        start = 0 if span is None else max(0, position - span + 1)
        expected = np.zeros((2, tokens // 4 + 1))
        for head in range(2):
            for q in query[3 * head : 3 * head + 3, row].double().numpy():
                weights = np.exp(0.5 * keys[head, start : position + 1].double().numpy() @ q)
                shares = weights / weights.sum() / 3
                np.add.at(expected[head], np.arange(start, position + 1) // 4, shares)
        np.testing.assert_allclose(expected, mass[row].numpy(), atol=1e-10)


@given(
    seed=SEEDS,
    blocks=st.integers(1, 9),
    chosen=st.integers(1, 10),
    sink=st.integers(0, 3),
    recent=st.integers(1, 4),
    position=st.integers(0, 39),
)
@settings(max_examples=100, deadline=None)
def test_attended_blocks_agree_with_a_plain_loop(seed, blocks, chosen, sink, recent, position):
    """Chosen from the candidates in order, plus the first and the newest blocks."""
    order = np.random.default_rng(seed).permutation(blocks)
    rule = WorkingSetRule(4, chosen, sink, recent)
    got = attended_blocks(torch.tensor(order)[None, None], torch.tensor([position]), rule)
    newest = position // 4 - recent + 1
    candidates = [int(block) for block in order if sink <= block < newest]
    expected = set(candidates[:chosen]) | set(range(min(sink, blocks + 1)))
    expected |= set(range(max(newest, 0), blocks + 1))
    assert expected == set(torch.nonzero(got[0, 0]).flatten().tolist())
