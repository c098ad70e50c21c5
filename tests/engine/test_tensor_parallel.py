"""Tensor parallelism: each GPU fetches for its own KV heads, and all wait for the slowest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from oasis_sim.engine import RunResult, simulate
from oasis_sim.engine.costs import GpuShare
from oasis_sim.engine.walks import build_walks
from oasis_sim.metrics import check_conservation, summarise
from oasis_sim.scheme import scheme_names
from oasis_sim.trace import AttentionTrace
from tests.engine.scenarios import TINY, random_trace, scenario, small_scheme

# Heads differ where the cap does not make them alike.
UNCAPPED = small_scheme("oasis", cap_blocks=32, fetch_ratio=None)


def restless_head(head: int, layers: tuple[int, ...] = (0, 1)) -> AttentionTrace:
    """Return a trace in which one of two heads changes its set in some layers, nothing else."""
    trace = random_trace()
    use, predicted = trace.use_order.copy(), trace.pred_order["next"].copy()
    for layer in range(use.shape[1]):
        for other in range(2):
            moves = slice(None) if other == head and layer in layers else slice(1)
            use[:, layer, other] = trace.use_order[moves, layer, 0]
            predicted[:, layer, other] = trace.pred_order["next"][moves, layer, 0]
    return dataclasses.replace(trace, use_order=use, pred_order={"next": predicted})


def step_ps(result: RunResult) -> float:
    """Return the mean length of steps with all rows sparse and no prefill."""
    steps = result.steps
    full = (steps.sparse_rows == 3) & (steps.prefill_tokens == 0)
    return float((steps.end_ps - steps.start_ps)[full].mean())


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", scheme_names())
def test_every_preset_keeps_the_laws(name: str, tp: int) -> None:
    """With two heads on two and four GPUs; blocks and bytes of all GPUs are the sum of theirs."""
    result = simulate(scenario(name, tp=tp))
    check_conservation(result)
    tables = build_walks(
        result.scenario.traces, result.scenario.scheme, GpuShare(TINY, tp), None, 0
    ).tables
    assert tables.gpus == tp
    by_rank = result.steps.rank_h2d_bytes @ tables.copies
    np.testing.assert_array_equal(by_rank, result.steps.h2d_bytes)


@pytest.mark.parametrize(("tp", "copies"), [(1, 1), (2, 1), (4, 2)])
def test_a_schedule_lists_what_the_gpus_move(tp: int, copies: int) -> None:
    """Every head once; where two GPUs hold a head, both move its blocks."""
    result = simulate(scenario(UNCAPPED, tp=tp, schedule_steps=6))
    schedule = result.schedule
    assert schedule is not None
    at = schedule.step
    np.testing.assert_array_equal(copies * schedule.step_moves(), result.steps.admitted_blocks[at])
    heads = np.bincount(schedule.move_head, minlength=2) * schedule.unit_bytes
    each = result.steps.rank_h2d_bytes[at].sum(axis=0)
    assert sorted(each.tolist()) == sorted(heads.tolist() if tp > 1 else [heads.sum()])


def test_walks_split_heads_over_gpus() -> None:
    """A GPU admits what its heads admit, step by step and layer by layer."""
    trace = random_trace()
    walks = build_walks((trace,), UNCAPPED, GpuShare(TINY, 2), None, 0)
    by_layer = walks.tables.admitted[:, walks.tables.group]
    for head in range(2):
        expected = walks.walks[0].admitted_by_head[:, :, head]
        found = [np.array_equal(by_layer[:, :, rank], expected) for rank in range(2)]
        assert any(found)
    one = build_walks((trace,), UNCAPPED, GpuShare(TINY, 1), None, 0)
    np.testing.assert_array_equal(one.tables.needed, walks.tables.needed)


def test_gpus_with_equal_moves_are_computed_once() -> None:
    """Four GPUs that hold two heads twice are two ranks; without transfers all are one."""
    trace = random_trace()
    walks = build_walks((trace,), UNCAPPED, GpuShare(TINY, 4), None, 0)
    assert walks.tables.copies.tolist() == [2, 2]
    dense = build_walks((), small_scheme("dense"), GpuShare(TINY, 4), None, 0)
    assert dense.tables.copies.tolist() == [4]


def slow(trace: AttentionTrace, tp: int = 2) -> RunResult:
    """Run on demand, so that every block is waited for."""
    return simulate(dataclasses.replace(scenario("on-demand", tp=tp), traces=(trace,)))


def test_all_gpus_wait_for_the_one_that_fetches() -> None:
    """It does not matter which head is restless: its GPU is busy, the other one idle."""
    one, other = slow(restless_head(0)), slow(restless_head(1))
    assert step_ps(one) == step_ps(other)
    link = summarise(one)["links"]["pcie_h2d"]
    assert link["busiest_gpu_utilisation"] == pytest.approx(2 * link["utilisation"], rel=1e-3)
    assert step_ps(slow(restless_head(0, ()))) < step_ps(one)


def test_layers_of_different_gpus_add_up() -> None:
    """One head restless in the upper layer, the other in the lower: the step waits for both."""
    upper, lower = restless_head(0, (1,)), restless_head(1, (0,))
    mixed = dataclasses.replace(
        upper,
        use_order=np.stack([lower.use_order[:, 0], upper.use_order[:, 1]], axis=1),
        pred_order={
            "next": np.stack([lower.pred_order["next"][:, 0], upper.pred_order["next"][:, 1]], 1)
        },
    )
    cases = (mixed, restless_head(0, ()), upper, lower)
    both, still, one, other = (int(slow(case).steps.stage_ps[:, -1].sum()) for case in cases)
    # Scores and top-K are waited for where nothing moves, too.
    assert both - still == pytest.approx(one - still + other - still, rel=0.02)
    busiest = slow(mixed).steps.rank_h2d_bytes.sum(axis=0)
    assert busiest.max() < busiest.sum()


def test_a_schedule_tells_its_collectives() -> None:
    """Two all-reduces a layer as the costs say, a part of the step; none on one GPU."""
    for tp in (1, 2):
        schedule = simulate(scenario(UNCAPPED, tp=tp, schedule_steps=4)).schedule
        assert schedule is not None
        found = np.array(schedule.meta["collective_ps"])
        assert (found.min() > 0) == (tp > 1)
        assert (found <= schedule.sim_stage_ps[:, schedule.stages.index("output_ffn")]).all()
