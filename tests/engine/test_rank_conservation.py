"""What all GPUs of a replica move together is what one GPU moves: by step, by layer, by head."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oasis_sim.engine import RunResult, Scenario, simulate
from oasis_sim.engine.costs import GpuShare
from oasis_sim.engine.moves import can_replay
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.scheme import Scheme, scheme_names
from tests.engine.scenarios import TINY, random_trace, scenario, small_scheme

Int64 = NDArray[np.int64]


@st.composite
def replicas(draw: st.DrawFn) -> Scenario:
    """Return a scenario of any built-in scheme, on 1 to 8 GPUs with 1 to 8 KV heads."""
    name = draw(st.sampled_from(scheme_names()))
    model = dataclasses.replace(TINY, kv_heads=draw(st.sampled_from([1, 2, 4, 8])))
    trace = random_trace(heads=draw(st.sampled_from([1, 2])), seed=draw(st.integers(0, 9)))
    scheme = small_scheme(name)
    if scheme.offload and not scheme.adaptive_cap and scheme.reuse:
        cap = draw(st.none() | st.integers(0, 24))
        scheme = dataclasses.replace(scheme, fetch_ratio=None, cap_blocks=cap, cap_over="head")
    plain = scenario(scheme, tp=draw(st.sampled_from([1, 2, 4, 8])), schedule_steps=6)
    return dataclasses.replace(plain, model=model, traces=(trace,) if scheme.selects else ())


def held(replica: Scenario) -> int:
    """Return how many GPUs hold each KV head."""
    return max(1, replica.tp // replica.model.kv_heads)


def walks_of(replica: Scenario, tp: int) -> Walks:
    """Return a scenario's walks on `tp` GPUs."""
    return build_walks(replica.traces, replica.scheme, GpuShare(replica.model, tp), None, 0)


def by_layer(walks: Walks) -> Int64:
    """Return the blocks of all GPUs together by walk step and layer, int64[W, L]."""
    tables = walks.tables
    return np.asarray(tables.admitted[:, tables.group] @ tables.copies)


def of_heads(walks: Walks, scheme: Scheme, heads: int) -> Int64 | None:
    """Return the blocks of all heads by walk step and layer, from the walk; None for a ladder."""
    if not scheme.offload:
        return np.zeros_like(by_layer(walks))
    if scheme.adaptive_cap:
        return None
    if not scheme.reuse:
        return np.full_like(by_layer(walks), scheme.chosen_blocks * heads)
    return walks.walks[0].admitted_by_head.sum(axis=2, dtype=np.int64)


@given(replica=replicas())
def test_every_layer_of_every_step(replica: Scenario) -> None:
    """The sum over GPUs is that over heads, each counted once for every GPU that holds it."""
    walks, alone = walks_of(replica, replica.tp), walks_of(replica, 1)
    assert replica.tp == walks.tables.gpus
    np.testing.assert_array_equal(held(replica) * by_layer(alone), by_layer(walks))
    np.testing.assert_array_equal(held(replica) * alone.tables.needed, walks.tables.needed)
    heads = of_heads(alone, replica.scheme, replica.model.kv_heads)
    if heads is not None:
        np.testing.assert_array_equal(heads, by_layer(alone))


@settings(max_examples=25)
@given(replica=replicas())
def test_every_step_of_a_run(replica: Scenario) -> None:
    """All GPUs fetch what one would, once for each that holds a head, and copy out what one would.

    An adaptive cap follows the time of a step, which is another one on more GPUs.
    """
    whole, alone = simulate(replica), simulate(dataclasses.replace(replica, tp=1))
    copies = walks_of(replica, replica.tp).tables.copies
    assert whole.steps.rank_h2d_bytes.shape == (len(whole.steps), len(copies))
    np.testing.assert_array_equal(whole.steps.rank_h2d_bytes @ copies, whole.steps.h2d_bytes)
    np.testing.assert_array_equal(alone.steps.rank_h2d_bytes[:, 0], alone.steps.h2d_bytes)
    fetched = ("h2d_bytes", "admitted_blocks", "needed_blocks", "deferred_blocks")
    for name in () if replica.scheme.adaptive_cap else fetched:
        each, once = getattr(whole.steps, name), getattr(alone.steps, name)
        np.testing.assert_array_equal(held(replica) * once, each, err_msg=name)
    np.testing.assert_array_equal(alone.steps.d2h_bytes, whole.steps.d2h_bytes)
    if can_replay(replica.scheme):
        check_schedule_by_gpu(replica, whole, copies)


def check_schedule_by_gpu(replica: Scenario, whole: RunResult, copies: Int64) -> None:
    """Give each GPU the listed moves of its heads: its bytes, step by step, are those of its rank.

    Layer by layer, what all of them move is the list, once for every GPU that holds a head.
    """
    schedule = whole.schedule
    assert schedule is not None
    shape = (schedule.steps, schedule.layers, schedule.kv_heads)
    group = np.repeat(np.arange(shape[0] * shape[1]), np.diff(schedule.move_offset))
    place = group * shape[2] + schedule.move_head
    units = np.bincount(place, minlength=int(np.prod(shape))).reshape(shape)
    gpus = [replica.model.kv_heads_of_gpu(rank, replica.tp) for rank in range(replica.tp)]
    moved = np.stack([units[:, :, heads].sum(axis=2) for heads in gpus], axis=2)
    np.testing.assert_array_equal(held(replica) * units.sum(axis=2), moved.sum(axis=2))
    simulated = np.repeat(whole.steps.rank_h2d_bytes[schedule.step], copies, axis=1)
    listed = moved.sum(axis=1) * schedule.unit_bytes
    np.testing.assert_array_equal(np.sort(listed, axis=1), np.sort(simulated, axis=1))
