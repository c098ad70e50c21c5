"""Selection: the kernel's own text, compiled for the CPU, decides exactly as the rule says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_exec.build import build_selection_for_cpu
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.residency.simulate import simulate
from tests.gpu_exec.kernel_oracles import PairState, select_oracle
from tests.gpu_exec.selection_cases import SelectBuffers, SelectCase

pytestmark = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the selection core"
)


def check_walk(case: SelectCase, scores: np.ndarray, slots: np.ndarray, first: int) -> None:
    """Run len(scores) selections and compare every decision with the oracle's."""
    buffers = SelectBuffers(case, slots)
    states = [PairState(list(map(int, row))) for row in slots]
    for step, step_scores in enumerate(scores, start=1):
        position = np.full(case.batch, first + step, dtype=np.int32)
        candidates = max(0, (first + step + 1) // case.block_tokens)
        buffers.scores[:] = step_scores
        buffers.run_on_cpu(position, step)
        expected = set()
        for pair, state in enumerate(states):
            row = step_scores[pair][:candidates]
            decision = select_oracle(row, state, case.chosen, case.cap, step)
            expected |= {(pair, block, slot) for block, slot in decision.admitted}
            found = buffers.attend_unit[pair][: buffers.attend_count[pair]]
            base = pair * (case.pool + 2)
            assert [base + i for i in decision.attended] == found.tolist()
            counts = [len(decision.needed), len(decision.admitted)]
            assert counts == buffers.counts[pair].tolist()
            assert state.slots == buffers.slot_block[pair].tolist()
            kept = [state.stamps.get(b, 0) for b in state.slots]
            assert kept == [
                int(s) if b in state.stamps else 0
                for b, s in zip(state.slots, buffers.stamp[pair], strict=True)
            ]
        assert expected == buffers.moves()


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    chosen=st.integers(1, 12),
    extra=st.integers(0, 12),
    cap=st.integers(0, 12),
    free=st.integers(0, 6),
    levels=st.sampled_from([1, 2, 5, 1000]),
)
def test_selection_follows_the_rule(
    seed: int, chosen: int, extra: int, cap: int, free: int, levels: int
) -> None:
    """Random scores with many ties, free slots, pools above the budget, growing contexts."""
    rng = np.random.default_rng(seed)
    pool = chosen + extra
    case = SelectCase(2, 2, pool, chosen, min(cap, chosen), 64)
    first = int(rng.integers(0, 900))
    known = max((first + 1) // 16, 0)
    slots = np.full((case.pairs, pool), -1)
    for row in slots:
        held = min(known, max(0, pool - free))
        row[rng.permutation(pool)[:held]] = rng.permutation(known)[:held]
    scores = rng.integers(-levels, levels, (6, case.pairs, 64)).astype(np.float32) / 7
    check_walk(case, scores, slots, first)


def test_zero_and_negative_zero_tie() -> None:
    """-0.0 and 0.0 tie, so the lower block id wins."""
    case = SelectCase(1, 1, 2, 2, 2, 16)
    scores = np.full((1, 1, 16), -1.0, dtype=np.float32)
    scores[0, 0, 3], scores[0, 0, 5], scores[0, 0, 9] = -0.0, 0.0, 0.0
    check_walk(case, scores, np.array([[0, 1]]), 15 * 16 + 3)


@pytest.mark.parametrize("first", [-1, 0, 13, 14, 15, 16, 30, 31, 32])
def test_boundaries_of_the_first_blocks(first: int) -> None:
    """Contexts with no candidate at all, one, two: nothing beyond them is chosen."""
    case = SelectCase(1, 2, 4, 3, 2, 16)
    scores = np.random.default_rng(first + 2).normal(size=(4, 2, 16)).astype(np.float32)
    check_walk(case, scores, np.full((2, 4), -1), first)


def test_reference_size_with_equal_scores() -> None:
    """1,024 blocks of which all but ten tie: the tail is filled by block id, none left out."""
    case = SelectCase(1, 2, 128, 128, 6, 1024)
    scores = np.zeros((3, 2, 1024), dtype=np.float32)
    scores[:, :, 1000:1010] = 1.0
    slots = np.arange(128)[None, :].repeat(2, 0) + 500
    check_walk(case, scores, slots, 16380)


def test_top_zero_and_all_negative() -> None:
    """Nothing chosen moves nothing; negative scores are ranked like any others."""
    slots = np.array([[0, 1, 2]])
    scores = -np.abs(np.random.default_rng(3).normal(size=(3, 1, 32))).astype(np.float32)
    check_walk(SelectCase(1, 1, 3, 0, 0, 32), scores, slots, 31 * 16)
    check_walk(SelectCase(1, 1, 3, 1, 1, 32), scores, slots, 31 * 16)
    check_walk(SelectCase(1, 1, 3, 3, 3, 32), scores, slots, 31 * 16)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    chosen=st.integers(1, 10),
    extra=st.integers(0, 6),
    cap=st.integers(0, 10),
)
def test_selection_equals_the_residency_core(seed: int, chosen: int, extra: int, cap: int) -> None:
    """The simulator's compiled core and the kernel admit the same blocks into the same slots."""
    rng = np.random.default_rng(seed)
    steps, heads, blocks = 30, 2, 48
    order = np.stack(
        [[[rng.permutation(blocks) for _ in range(heads)]] for _ in range(steps)]
    ).astype(np.uint16)
    position = (16 * (blocks - 4) + np.arange(steps)).astype(np.int32)
    rule = ResidencyRule(chosen, chosen + extra, cap)
    log = simulate(order, order, position, rule, moves=True)
    assert log.moves is not None
    case = SelectCase(1, heads, chosen + extra, chosen, cap, blocks)
    start = log.moves.start[0].astype(np.int64)
    buffers = SelectBuffers(case, np.where(start == 65535, -1, start))
    for step in range(1, steps):
        for head in range(heads):
            buffers.scores[head, order[step, 0, head]] = np.arange(blocks, 0, -1)
        buffers.run_on_cpu(position[step : step + 1] - 1, step)
        expected = set()
        for head in range(heads):
            row = step * heads + head
            part = slice(log.moves.offset[row], log.moves.offset[row + 1])
            pairs = zip(log.moves.block[part], log.moves.slot[part], strict=True)
            expected |= {(head, int(block), int(slot)) for block, slot in pairs}
            assert log.needed[step, 0, head] == buffers.counts[head, 0]
        assert expected == buffers.moves()
