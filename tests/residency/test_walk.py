"""The walk: steady, continuous, mapped to the model, and equal to its own moves."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.residency.mapping import map_heads, nearest_layers
from oasis_sim.residency.plain import simulate_plain
from oasis_sim.residency.route import visited_steps, walk_steps
from oasis_sim.residency.rule import ResidencyRule, StepPath
from oasis_sim.residency.stats import trace_stats
from oasis_sim.residency.walk import WalkTable, build_walk, walk_moves
from oasis_sim.trace import NO_BLOCK, AttentionTrace, decode_mass, read_trace, save_trace
from tests.strategies import make_trace, residency_rules


@dataclass(frozen=True)
class Shape:
    """Stand in for a model: a walk asks for its layers and KV heads only."""

    layers: int
    kv_heads: int


def walk(
    trace: AttentionTrace, rule: ResidencyRule, predictor: str = "draft", shape: Shape | None = None
) -> WalkTable:
    """Build a walk for a model like the trace."""
    return build_walk(
        trace, rule, predictor, None, shape or Shape(trace.model_layers, trace.kv_heads)
    )


def test_steps_go_to_and_fro() -> None:
    """One period visits the ends once and everything else twice."""
    assert [1, 2, 3, 4, 3, 2] == walk_steps(5).tolist()
    assert [1, 2] == walk_steps(3).tolist()


@given(st.integers(3, 50))
def test_neighbours_in_the_walk_are_neighbours_in_the_trace(steps: int) -> None:
    """No jump anywhere, the seam of the cycle included; the period is 2 (T - 2)."""
    period = walk_steps(steps)
    assert 2 * (steps - 2) == len(period)
    jumps = np.abs(np.diff(np.append(period, period[0])))
    assert (jumps == 1).all()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rule=residency_rules(block_tokens=4),
    predictor=st.sampled_from(["draft", "previous", "current", "oracle"]),
    shape=st.builds(Shape, st.integers(1, 7), st.integers(1, 5)),
    offset=st.integers(0, 40),
)
def test_moves_are_those_the_table_counts(
    seed: int, rule: ResidencyRule, predictor: str, shape: Shape, offset: int
) -> None:
    """Any request's moves have the table's counts, keep the pool sound, and stay in their slots."""
    trace = make_trace(seed, steps=8, layers=3, heads=2, stored=25)
    table = walk(trace, rule, predictor, shape)
    steps = 5 if table.steady else max(1, min(5, table.period - offset % table.period))
    moves = walk_moves(
        trace, rule, predictor, None, shape, table=table, window=range(offset, offset + steps)
    )
    assert (shape.layers, shape.kv_heads, rule.pool_blocks) == moves.pool.shape
    for layer in range(shape.layers):
        pool = moves.pool[layer].copy()
        for step in range(steps):
            head, block, slot = moves.layer(step, layer)
            assert table.admitted[(offset + step) % table.period, layer] == len(block)
            assert (np.diff(head.astype(int)) >= 0).all()
            pool[head, slot] = block
            for row in pool:
                held = row[row != NO_BLOCK]
                assert len(set(held.tolist())) == len(held)
    assert (table.admitted <= table.needed).all()


@pytest.mark.parametrize("predictor", ["draft", "previous", "oracle", "current"])
def test_table_equals_the_plain_twin_on_the_written_out_walk(predictor: str) -> None:
    """The last of three written-out periods, simulated plainly, gives the table."""
    trace = make_trace(9, steps=7, layers=2, heads=2, stored=25, jitter=0.3)
    rule = ResidencyRule(5, 7, 2, block_tokens=4, on_demand=predictor == "current")
    table = walk(trace, rule, predictor)
    rows = np.tile(walk_steps(7), table.warmup_periods + 1).astype(np.int64)
    position = trace.position.astype(np.int64)
    ahead = predictor in {"draft", "previous"}
    source = np.roll(rows, 1) if predictor == "previous" else rows - (predictor == "draft")
    targets = trace.pred_order["ngram"] if predictor == "draft" else trace.use_order
    path = StepPath(
        rows, position[rows], source, position[source] + ahead, len(rows) - table.period
    )
    log = simulate_plain(trace.use_order, targets, path, rule, trace.mass)
    np.testing.assert_array_equal(log.needed.sum(axis=2), table.needed)
    np.testing.assert_array_equal(log.admitted.sum(axis=2), table.admitted)
    assert log.mass is not None
    assert table.mass is not None
    assert trace.mass is not None
    whole = decode_mass(trace.mass).sum(axis=-1)[table.trace_step]
    np.testing.assert_allclose((log.mass / whole).mean(axis=(1, 2)), table.mass, atol=1e-9)


def test_steps_visited_when_accepted_drafts_are_kept() -> None:
    """An accepted draft's token has no step of its own."""
    assert [0, 1, 3, 4, 6] == visited_steps(np.array([0, 1, 1, 0, 1, 1, 0], np.uint8)).tolist()
    assert [0, 1, 2] == visited_steps(np.zeros(3, np.uint8)).tolist()
    assert [0, 2] == visited_steps(np.ones(3, np.uint8)).tolist()


def test_a_speculative_walk_equals_the_plain_twin() -> None:
    """Targets come from the draft of the step visited before; tokens follow acceptance."""
    trace = make_trace(9, steps=11, layers=2, heads=2, stored=25, jitter=0.3)
    accepted = np.array([0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1], dtype=np.uint8)
    trace = replace(trace, accepted=dict.fromkeys(trace.pred_order, accepted))
    rule = ResidencyRule(5, 7, 2, block_tokens=4)
    table = build_walk(trace, rule, "draft", None, Shape(2, 2), speculative=True)
    rows = [1, 3, 4, 6, 8, 9, 10, 9, 8, 6, 4, 3]
    before = {1: 0, 3: 1, 4: 3, 6: 4, 8: 6, 9: 8, 10: 9}
    assert rows == table.trace_step.tolist()
    assert [1 + int(accepted[row]) for row in rows] == table.tokens.tolist()
    use = np.tile(np.array(rows), table.warmup_periods + 1)
    source = np.array([before[row] for row in use.tolist()])
    position = trace.position.astype(np.int64)
    path = StepPath(use, position[use], source, position[source] + 1, len(use) - len(rows))
    log = simulate_plain(trace.use_order, trace.pred_order["ngram"], path, rule, trace.mass)
    np.testing.assert_array_equal(log.needed.sum(axis=2), table.needed)
    np.testing.assert_array_equal(log.admitted.sum(axis=2), table.admitted)


def test_the_walk_keeps_the_trace_statistics() -> None:
    """Needed blocks and captured mass are those of the trace read once, within a few percent."""
    trace = make_trace(10, steps=96, layers=2, heads=2, stored=40, prompt=160, jitter=0.05)
    k = 20
    once = trace_stats(trace, [(k + 3) * 4], [1.0], ["previous"])[0]
    table = walk(trace, ResidencyRule(k, k, k, 1, 2, block_tokens=4), "previous")
    needed = table.needed.mean() / trace.kv_heads / k
    assert once.needed == pytest.approx(needed, rel=0.05)
    assert trace.mass is not None
    assert table.mass_mean is not None
    whole = decode_mass(trace.mass).sum(axis=-1).mean()
    assert once.attention_mass == pytest.approx(table.mass_mean * whole, rel=0.02)
    # Wrapping round instead would replace most of the set once per period.
    assert table.needed.max() < 0.9 * k * trace.kv_heads


def test_quality_adds_up() -> None:
    """Read and unread mass are the whole; percentiles bracket the means."""
    trace = make_trace(11, steps=10, stored=25)
    table = walk(trace, ResidencyRule(4, 4, 4, block_tokens=4))
    assert table.mass is not None
    assert table.lost is not None
    assert table.mass_mean is not None
    assert table.mass_p5 is not None
    assert table.lost_mean is not None
    assert table.lost_p95 is not None
    np.testing.assert_allclose(1.0, table.mass + table.lost, atol=1e-9)
    assert table.mass_p5 <= table.mass_mean
    assert table.lost_p95 >= table.lost_mean
    assert (table.lost >= 0).all()


def test_the_true_set_without_a_cap_is_attended_whole() -> None:
    """On demand, the overlap is 1 at every step."""
    trace = make_trace(12, steps=10, stored=25)
    table = walk(trace, ResidencyRule(4, 4, 4, block_tokens=4, on_demand=True), "current")
    np.testing.assert_array_equal(np.ones(table.period), table.overlap)


def test_without_mass_there_are_no_mass_proxies() -> None:
    """Nothing is made up."""
    table = walk(make_trace(13, steps=9, with_mass=False), ResidencyRule(4, 4, 4, block_tokens=4))
    assert (None,) * 4 == (table.mass, table.lost, table.mass_p5, table.lost_p95)
    assert (None, None) == (table.mass_mean, table.lost_mean)


def test_equal_models_map_layer_by_layer() -> None:
    """With as many layers, each recorded layer stands for itself."""
    assert list(range(30)) == nearest_layers(range(30), 30, 30).tolist()


def test_layers_map_by_relative_depth() -> None:
    """Every second of 8 layers serves 4; ties go to the lower; gaps to the nearest."""
    assert [0, 0, 1, 1, 2, 2, 3, 3] == nearest_layers([0, 1, 2, 3], 4, 8).tolist()
    assert [0, 2, 4, 6] == nearest_layers(range(8), 8, 4).tolist()
    assert [0, 0, 0, 1, 1, 1] == nearest_layers([1, 4], 6, 6).tolist()


def test_heads_map_in_turn_and_sums_count_each() -> None:
    """Head h takes recorded head h mod H; sums weigh recorded heads by how often they stand in."""
    trace = make_trace(14, layers=2, heads=2)
    heads = map_heads(trace, 4, 5)
    assert [0, 1, 0, 1, 0] == heads.head.tolist()
    array = np.arange(3 * 2 * 2).reshape(3, 2, 2)
    np.testing.assert_array_equal(heads.expand(array).sum(axis=2), heads.sum_heads(array))


def test_unused_heads_and_window_layers_are_left_out() -> None:
    """A model with fewer heads reads only those; sliding-window layers never stand in."""
    trace = make_trace(15, layers=3, heads=3)
    meta = dict(trace.meta) | {"layer_span": [32, None, None]}
    heads = map_heads(replace(trace, meta=meta), 3, 1)
    assert ((1, 2), 1) == (heads.part.layer_ids, heads.part.kv_heads)
    assert [0, 0, 1] == heads.layer.tolist()


@pytest.mark.parametrize(
    ("steps", "block_tokens", "predictor", "word"),
    [
        (2, 4, "draft", "3 or more"),
        (6, 16, "draft", "blocks of 4 tokens"),
        (6, 4, "psychic", "not known"),
    ],
)
def test_unfit_traces_are_refused(steps: int, block_tokens: int, predictor: str, word: str) -> None:
    """Too short, cut into other blocks, or asked for an unknown predictor."""
    trace = make_trace(16, steps=steps)
    with pytest.raises(InputError, match=word):
        walk(trace, ResidencyRule(4, 4, 4, block_tokens=block_tokens), predictor)


def test_a_trace_with_short_orders_is_refused() -> None:
    """A choice beyond what is stored would be silently smaller."""
    trace = make_trace(17, stored=6, prompt=200)
    with pytest.raises(InputError, match="stored_blocks"):
        walk(trace, ResidencyRule(20, 20, 20, block_tokens=4))


def test_a_walk_as_large_as_a_real_model_is_quick() -> None:
    """36 layers x 8 heads x 200 walk steps, 128 of 256 blocks, take far less than 2 s."""
    few = make_trace(18, steps=102, layers=4, heads=8, stored=256, prompt=2048, with_mass=False)
    meta = dict(few.meta) | {"layer_ids": list(range(36)), "layer_span": [None] * 36}
    trace = replace(
        few,
        meta=meta | {"model": {**few.meta["model"], "layers": 36}},
        use_order=np.tile(few.use_order, (1, 9, 1, 1)),
        pred_order={"ngram": np.tile(few.pred_order["ngram"], (1, 9, 1, 1))},
    )
    rule = ResidencyRule(128, 128, 128, block_tokens=4)
    walk(make_trace(18), replace(rule, chosen_blocks=4))  # compile
    start = time.process_time()
    table = walk(trace, rule)
    assert (200, 36) == table.admitted.shape
    assert time.process_time() - start < 2.0


@pytest.mark.filterwarnings("error")
def test_a_step_without_mass_is_unknown_and_left_out(tmp_path: Path) -> None:
    """Its share is neither zero nor NaN; the means are those of the other steps."""
    rule = ResidencyRule(4, 4, 4, block_tokens=4)
    trace = make_trace(5, steps=8, layers=2, heads=2, stored=25)
    assert trace.mass is not None
    whole = walk(trace, rule)
    silent = trace.mass.copy()
    silent[3] = 0
    table = walk(replace(trace, mass=silent), rule)
    assert whole.mass is not None
    assert table.mass is not None
    assert table.lost is not None
    others = whole.mass[whole.trace_step != 3]
    assert table.mass_mean == pytest.approx(others.mean())
    np.testing.assert_array_equal(others, table.mass[table.trace_step != 3])
    np.testing.assert_allclose(1.0, table.mass + table.lost)
    nothing = walk(replace(trace, mass=np.zeros_like(silent)), rule)
    assert (None, None, None) == (nothing.mass, nothing.lost, nothing.mass_p5)
    save_trace(replace(trace, mass=silent), tmp_path / "t.npz")
    found = [text for text in read_trace(tmp_path / "t.npz").warnings if "mass" in text]
    assert 1 == len(found)
    assert found[0].startswith("no attention mass in 4 of 32 steps x layers x heads")
