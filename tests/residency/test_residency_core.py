"""The compiled residency core: equal to the plain twin, and true to its promises."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.residency.head_pool import HeadPool
from oasis_sim.residency.plain import simulate_plain, split_by_need
from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.residency.simulate import simulate, simulate_path, total_mass
from oasis_sim.trace import NO_BLOCK, AttentionTrace, decode_mass
from tests.strategies import attention_traces, make_trace, residency_rules


def order(*steps: list[int]) -> np.ndarray:
    """Return the orders of one head, uint16[T, 1, 1, M], padded."""
    width = max(len(step) for step in steps)
    rows = [step + [NO_BLOCK] * (width - len(step)) for step in steps]
    return np.array(rows, dtype=np.uint16)[:, None, None, :]


@st.composite
def paths(draw: st.DrawFn, trace: AttentionTrace, block_tokens: int) -> StepPath:
    """Draw any walk over the trace's rows, with positions that need not match them."""
    steps = draw(st.integers(1, 14))
    rows = st.lists(st.integers(0, trace.steps - 1), min_size=steps, max_size=steps)
    places = st.lists(st.integers(0, 30 * block_tokens), min_size=steps, max_size=steps)
    arrays = [np.array(draw(kind), dtype=np.int64) for kind in (rows, places, rows, places)]
    return StepPath(*arrays, first=draw(st.integers(0, steps - 1)))


def assert_same(expected: ResidencyLog, actual: ResidencyLog) -> None:
    """Compare two logs and their moves bit by bit, and mass to rounding."""
    for name in ("needed", "admitted", "overlap"):
        np.testing.assert_array_equal(getattr(expected, name), getattr(actual, name), name)
    if expected.mass is None or actual.mass is None:
        assert expected.mass is actual.mass
    else:
        np.testing.assert_allclose(expected.mass, actual.mass, rtol=0, atol=1e-10)
    assert expected.moves is not None
    assert actual.moves is not None
    for field in fields(Moves):
        np.testing.assert_array_equal(
            getattr(expected.moves, field.name), getattr(actual.moves, field.name), field.name
        )


def ways(trace: AttentionTrace) -> st.SearchStrategy[dict[str, bool]]:
    """Draw who shares caps, who leaves, and whether fetches must be worth it."""
    sharing = [{}, {"cap_over_heads": True}, {"cap_over_layers": True}]
    leaving = [{}, {"belady": True}]
    if trace.mass is not None:
        leaving += [{"least_attended": True}, {"least_attended": True, "gainful": True}]
    pairs = st.tuples(st.sampled_from(sharing), st.sampled_from(leaving))
    return pairs.map(lambda pair: pair[0] | pair[1])


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_core_equals_plain_twin(data: st.DataObject) -> None:
    """Every count, move and slot agrees on any trace, rule and walk."""
    trace = data.draw(attention_traces())
    rule = data.draw(residency_rules())
    rule = replace(rule, **data.draw(ways(trace)))
    path = data.draw(paths(trace, rule.block_tokens))
    target = next(iter(trace.pred_order.values()), trace.use_order)
    args = (trace.use_order, target, path, rule)
    expected = simulate_plain(*args, trace.mass)
    assert_same(expected, simulate_path(*args, mass=trace.mass, moves=True))


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_moves_replay_to_a_consistent_pool(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """Applying the moves alone: caps, slots and the pool never break a promise."""
    log = simulate(
        trace.use_order, trace.use_order, trace.position, rule, mass=trace.mass, moves=True
    )
    moves = log.moves
    assert moves is not None
    for layer, head in np.ndindex(log.needed.shape[1:]):
        slots = moves.start[layer, head].copy()
        for step in range(trace.steps):
            row = np.ravel_multi_index((step, layer, head), log.needed.shape)
            span = slice(moves.offset[row], moves.offset[row + 1])
            assert span.stop - span.start == log.admitted[step, layer, head]
            assert span.stop - span.start <= min(rule.cap_blocks, rule.depth)
            assert len(set(moves.slot[span])) == span.stop - span.start
            slots[moves.slot[span]] = moves.block[span]
            held = slots[slots != NO_BLOCK]
            assert len(set(held)) == len(held) <= rule.pool_blocks
    assert (log.needed >= log.admitted).all()
    assert (log.overlap <= rule.chosen_blocks).all()


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_no_cap_attends_the_whole_target(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """Without a cap and with the true query as target, overlap is the true set itself."""
    free = replace(rule, cap_blocks=rule.pool_blocks, on_demand=True, depth_blocks=None)
    log = simulate(trace.use_order, trace.use_order, trace.position, free)
    np.testing.assert_array_equal(log.needed, log.admitted)
    pool = HeadPool(free)
    for step, layer, head in np.ndindex(log.overlap.shape):
        true_set = pool.choose(trace.use_order[step, layer, head], int(trace.position[step]))
        assert len(true_set) == log.overlap[step, layer, head]


@settings(max_examples=40, deadline=None)
@given(attention_traces(), residency_rules())
def test_a_cap_of_zero_moves_nothing(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """Cap 0 keeps the pool of the first step for ever."""
    log = simulate(
        trace.use_order, trace.use_order, trace.position, replace(rule, cap_blocks=0), moves=True
    )
    assert 0 == log.admitted.sum()
    assert log.moves is not None
    assert 0 == len(log.moves.block)


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_a_cap_over_heads_grants_as_much_as_separate_caps_or_more(
    trace: AttentionTrace, rule: ResidencyRule
) -> None:
    """A layer admits C x heads together, or all that it needs."""
    rule = replace(rule, cap_over_heads=True, depth_blocks=None)
    log = simulate(trace.use_order, trace.use_order, trace.position, rule)
    total = rule.cap_blocks * log.needed.shape[2]
    np.testing.assert_array_equal(
        np.minimum(log.needed.sum(axis=2), total), log.admitted.sum(axis=2)
    )


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_a_shared_cap_takes_nothing_away_from_a_head_of_the_layer(
    trace: AttentionTrace, rule: ResidencyRule
) -> None:
    """Every head of a layer admits what it would alone, or more."""
    rule = replace(rule, cap_over_heads=True, depth_blocks=None)
    log = simulate(trace.use_order, trace.use_order, trace.position, rule)
    assert (log.admitted >= np.minimum(log.needed, rule.cap_blocks)).all()


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_a_cap_over_layers_is_kept_and_used(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """All heads admit C each at most; each layer what its share by the last misses allows."""
    rule = replace(rule, cap_over_layers=True, depth_blocks=None)
    log = simulate(trace.use_order, trace.use_order, trace.position, rule)
    cap = min(rule.cap_blocks, rule.pool_blocks)
    total = cap * log.needed[0].size
    needed, admitted = log.needed.sum(axis=2), log.admitted.sum(axis=2)
    assert (admitted.sum(axis=1) <= total).all()
    for before, now, moved in zip(needed, needed[1:], admitted[1:], strict=False):
        quotas = np.array(split_by_need(before.tolist(), total))
        assert total == quotas.sum()
        assert (np.abs(quotas * before.sum() - total * before) < max(before.sum(), 1)).all()
        np.testing.assert_array_equal(np.minimum(now, quotas), moved)


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_a_cap_over_one_layer_is_that_of_the_layer(
    trace: AttentionTrace, rule: ResidencyRule
) -> None:
    """With a single layer both ways to share are one."""
    use = trace.use_order[:, :1]
    logs = [
        simulate(use, use, trace.position, replace(rule, **{way: True}), moves=True)
        for way in ("cap_over_heads", "cap_over_layers")
    ]
    assert_same(*logs)


@pytest.mark.parametrize("way", ["cap_over_heads", "cap_over_layers"])
def test_sharing_changes_nothing_where_all_heads_need_their_cap(way: str) -> None:
    """Two blocks of each head change in every step, and the cap is two."""
    steps, layers, heads = 8, 3, 2
    ring = (np.arange(steps)[:, None] * 2 + np.arange(4)) % 12
    use = np.broadcast_to(ring[:, None, None], (steps, layers, heads, 4)).astype(np.uint16)
    position = np.full(steps, 12 * 4)
    rule = ResidencyRule(4, 4, 2, sink_blocks=0, recent_blocks=0, block_tokens=4)
    own = simulate(use, use, position, rule, moves=True)
    assert (own.needed[1:] == 2).all()
    assert_same(own, simulate(use, use, position, replace(rule, **{way: True}), moves=True))


@settings(max_examples=60, deadline=None)
@given(attention_traces(), residency_rules())
def test_no_eviction_misses_less_than_belady(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """Without a cap, knowing the future needs no more fetches than the least recently selected."""
    rule = replace(rule, cap_blocks=rule.pool_blocks, depth_blocks=None)
    needed = [
        simulate(trace.use_order, trace.use_order, trace.position, each).needed.sum(axis=0)
        for each in (rule, replace(rule, belady=True))
    ]
    assert (needed[1] <= needed[0]).all()


def test_heads_that_share_a_cap_by_hand() -> None:
    """Head 1 misses two blocks and head 0 none: with one admission each, head 1 gets both."""
    still, moving = [[0, 1, 2, 3]] * 2, [[0, 1, 2, 3], [2, 3, 0, 1]]
    use = np.array([still, moving], dtype=np.uint16).transpose(1, 0, 2)[:, None]
    position = np.array([40, 41], dtype=np.int32)
    own = ResidencyRule(2, 2, 1, sink_blocks=0, recent_blocks=0, block_tokens=4)
    for rule, expected in ((own, [0, 1]), (replace(own, cap_over_heads=True), [0, 2])):
        log = simulate(use, use, position, rule)
        assert [0, 2] == log.needed[1, 0].tolist()
        assert expected == log.admitted[1, 0].tolist()


def attention_by_hand(gainful: bool) -> list[list[int]]:
    """Return the pools of one head, pool 3 and choice 2: block 0 is heavy, 1 and 2 are light."""
    use = order([0, 1, 2, 3, 4], *[[1, 2, 0, 3, 4]] * 3, [3, 4, 1, 2, 0])
    mass = np.zeros((5, 1, 1, 6), dtype=np.uint8)
    mass[..., :5] = [250, 200, 190, 100, 100]
    rule = ResidencyRule(2, 3, 2, sink_blocks=0, recent_blocks=1, block_tokens=4)
    rule = replace(rule, least_attended=True, gainful=gainful)
    log = simulate(use, use, np.full(5, 23), rule, mass=mass, moves=True)
    assert log.moves is not None
    slots, pools = log.moves.start[0, 0].copy(), []
    for step in range(5):
        span = slice(log.moves.offset[step], log.moves.offset[step + 1])
        slots[log.moves.slot[span]] = log.moves.block[span]
        pools.append(sorted(slots.tolist()))
    return pools


def test_the_least_attended_block_leaves_by_hand() -> None:
    """Blocks 3 and 4 take the slots of the light ones, although 0 was selected longest ago."""
    pools = attention_by_hand(gainful=False)
    assert [[0, 1, NO_BLOCK], *[[0, 1, 2]] * 3, [0, 3, 4]] == pools


def test_fetches_that_are_not_worth_it_wait_by_hand() -> None:
    """Block 2 was worth its share; 1 held more than that, so that only 2 is given up for 3."""
    pools = attention_by_hand(gainful=True)
    assert [[0, 1, NO_BLOCK], *[[0, 1, 2]] * 3, [0, 1, 3]] == pools


def test_eviction_by_attention_needs_mass() -> None:
    """Without mass in the trace there is nothing to evict by."""
    trace, rule = make_trace(1, with_mass=False), ResidencyRule(4, 4, 4, least_attended=True)
    with pytest.raises(InputError, match="mass"):
        simulate(trace.use_order, trace.use_order, trace.position, rule)


def test_worked_example_by_hand() -> None:
    """Pool 3, choice 2, cap 1: slots, stamps, deferral and eviction as on paper."""
    use = order([0, 1, 2, 3], [2, 3, 0, 1], [3, 2, 1, 0], [4, 0, 1, 2])
    position = np.array([40, 41, 42, 43], dtype=np.int32)
    rule = ResidencyRule(2, 3, 1, sink_blocks=0, recent_blocks=0, block_tokens=4)
    log = simulate(use, use, position, rule, moves=True)
    # start {0, 1}; step 1 wants 2, 3: 2 enters the free slot 2, 3 waits;
    # step 2 wants 3, 2: 3 evicts 0 (stamp 0, lower id) from slot 0; step 3 wants 4, 0: 4 evicts 1.
    assert [0, 2, 1, 2] == log.needed.ravel().tolist()
    assert [0, 1, 1, 1] == log.admitted.ravel().tolist()
    assert log.moves is not None
    assert [2, 3, 4] == log.moves.block.tolist()
    assert [2, 0, 1] == log.moves.slot.tolist()
    assert [0, 1, NO_BLOCK] == log.moves.start.ravel().tolist()
    assert [2, 1, 2, 1] == log.overlap.ravel().tolist()


def test_mass_counts_each_block_once() -> None:
    """Sink, newest and attended blocks add up without counting any twice."""
    rule = ResidencyRule(15, 15, 15, sink_blocks=2, recent_blocks=3, block_tokens=4)
    full = make_trace(3, steps=4, prompt=60, block_tokens=4, stored=20)
    log = simulate(full.use_order, full.use_order, full.position, rule, mass=full.mass)
    assert log.mass is not None
    assert full.mass is not None
    np.testing.assert_allclose(decode_mass(full.mass).sum(axis=-1), log.mass, rtol=0, atol=1e-9)


def test_total_mass_sums_all_blocks() -> None:
    """The total is the decoded sum, row by row, in the order asked for."""
    trace = make_trace(5)
    assert trace.mass is not None
    rows = np.array([3, 0, 3])
    np.testing.assert_allclose(
        decode_mass(trace.mass[rows]).sum(axis=-1), total_mass(trace.mass, rows), atol=1e-9
    )


@pytest.mark.parametrize(
    ("field", "others"),
    [("least_attended", {"belady": True, "least_attended": True}), ("gainful", {"gainful": True})],
)
def test_ways_that_contradict_each_other_are_refused(field: str, others: dict[str, bool]) -> None:
    """One eviction at a time; worth is known by attention alone."""
    with pytest.raises(InputError, match=field):
        ResidencyRule(4, 4, 4, **others)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chosen_blocks", 0),
        ("pool_blocks", 3),
        ("cap_blocks", -1),
        ("depth_blocks", -1),
        ("sink_blocks", -1),
        ("recent_blocks", -1),
        ("block_tokens", 0),
    ],
)
def test_rules_that_contradict_themselves_are_refused(field: str, value: int) -> None:
    """Each size has a least value; the message names the field."""
    with pytest.raises(InputError, match=field):
        ResidencyRule(**({"chosen_blocks": 4, "pool_blocks": 4, "cap_blocks": 4} | {field: value}))


def test_arrays_that_do_not_fit_are_refused() -> None:
    """Orders of different traces, and rows past the end, raise InputError."""
    trace, other = make_trace(1), make_trace(1, layers=3)
    rule = ResidencyRule(4, 4, 4)
    with pytest.raises(InputError, match="shape"):
        simulate(trace.use_order, other.use_order, trace.position, rule)
    with pytest.raises(InputError, match="length"):
        simulate(trace.use_order, trace.use_order, trace.position[:0], rule)
    rows = np.array([0, 6])
    with pytest.raises(InputError, match="6 steps"):
        simulate_path(trace.use_order, trace.use_order, StepPath(rows, rows, rows, rows), rule)


def test_read_only_arrays_are_accepted_and_left_alone() -> None:
    """Frozen input arrays work and keep their bytes."""
    trace = make_trace(8)
    frozen = trace.use_order.copy()
    frozen.flags.writeable = False
    rule = ResidencyRule(4, 5, 2, block_tokens=4)
    expected = simulate(trace.use_order, trace.use_order, trace.position, rule, moves=True)
    assert_same(expected, simulate(frozen, frozen, trace.position, rule, moves=True))
    np.testing.assert_array_equal(trace.use_order, frozen)
