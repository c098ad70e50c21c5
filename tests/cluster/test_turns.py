"""Hand-overs that wait for their turn, and what is said to hold up the batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.metrics import summarise_cluster
from oasis_sim.workload import closed_loop, poisson
from tests.cluster.scenarios import INFINITE, nodes, run, scenario

SLOW = {"send_bytes_per_s": 10**9, "receive_bytes_per_s": 10**9}


BREAKS = (
    "link:node=prefill0,at=100ms,for=200ms,share=0.01",
    "link:node=decode0,at=50ms,share=0.1",
    "link:node=decode0,at=0s,for=400ms,share=0.001",
    "prefill:node=0,at=150ms,for=300ms",
    "prefill:node=0,at=0s,for=100ms",
    "prefill:node=0,at=310ms,for=1ms",
    "prefill:node=0,at=600ms,for=100ms",
)
COMPLETIONS = (
    "completion:share=0.1,delay=3ms",
    "completion:share=1,delay=200ms",
    "completion:share=0.5,lost",
)
TIMEOUTS = ("timeout:after=1ms", "timeout:after=40ms", "timeout:after=2s")


def faults() -> st.SearchStrategy[tuple[str, ...]]:
    """Draw any combination of what can break."""
    one = [st.lists(st.sampled_from(kind), max_size=1) for kind in (COMPLETIONS, TIMEOUTS)]
    broken = st.lists(st.sampled_from(BREAKS), max_size=3, unique=True)
    return st.tuples(broken, *one).map(lambda parts: tuple(text for p in parts for text in p))


def most_at_once(begin: np.ndarray, end: np.ndarray) -> int:
    """Return the largest number of intervals that overlap; ends come before begins."""
    when = np.concatenate([begin, end])
    change = np.repeat([1, -1], len(begin))
    return int(np.cumsum(change[np.lexsort((change, when))]).max(initial=0))


@settings(max_examples=40, deadline=None)
@given(
    scheme=st.sampled_from(["oasis", "dense"]),
    at_once=st.none() | st.integers(1, 3),
    output=st.integers(1, 60),
    prefill=st.integers(1, 4),
    decode_nodes=st.integers(1, 2),
    concurrency=st.none() | st.integers(1, 9),
    rate=st.sampled_from([10.0, 1000.0]),
    texts=faults(),
)
def test_no_more_than_asked_are_under_way(**drawn: Any) -> None:
    """Whatever breaks; every request ends, every byte is accounted for."""
    load = poisson(drawn["rate"], 9, 1600, drawn["output"], 1)
    given_ = scenario(drawn["scheme"], load, concurrency=drawn["concurrency"])
    on = nodes(
        drawn["prefill"],
        drawn["decode_nodes"],
        given_,
        *drawn["texts"],
        at_once=drawn["at_once"],
    )
    on = dataclasses.replace(on, network=dataclasses.replace(on.network, **SLOW))
    result = run(given_, on)
    moves = result.hand_overs
    assert (result.run.requests.status == 0).all()
    if drawn["at_once"] is None:
        return
    for node in range(drawn["decode_nodes"]):
        mine = (moves.decode_node == node) & (moves.ready_ps >= 0)
        most = most_at_once(moves.sent_ps[mine], moves.ready_ps[mine])
        assert most <= drawn["at_once"]


def test_one_after_the_other_the_mean_of_equal_hand_overs_is_shorter() -> None:
    """Of n that start together over one NIC the mean is (n + 1) / 2n of the last, which stays."""
    given_ = scenario("dense", closed_loop(4, 1600, 4), concurrency=4)
    apart = nodes(4, 1, given_)
    network = dataclasses.replace(apart.network, **(INFINITE | SLOW))
    shared = dataclasses.replace(apart, network=network)
    ends = [
        run(given_, dataclasses.replace(shared, at_once=bound)).hand_overs.ready_ps
        - run(given_, shared).hand_overs.sent_ps
        for bound in (None, 4, 1)
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert len(set(ends[0])) == 1
    np.testing.assert_allclose(np.sort(ends[2]), ends[0] * np.array([1, 2, 3, 4]) / 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("load", "concurrency", "limit"),
    [
        (closed_loop(12, 1600, 40), 2, "concurrency"),
        (closed_loop(12, 1600, 2), None, "prefill_nodes"),
        (poisson(1.0, 6, 1600, 4, 1), None, "arrivals"),
    ],
)
def test_what_holds_up_the_batch_is_observed(
    load: Any, concurrency: int | None, limit: str
) -> None:
    """Clients at their limit, a queue at the prefill node, or nobody there."""
    given_ = scenario("oasis", load, concurrency=concurrency)
    found = summarise_cluster(run(given_, nodes(1, 1, given_)))
    assert found["batch_limit"] == limit
    assert 0.5 < found["batch_limit_share_of_time"] <= 1


def test_a_full_decode_host_holds_up_hand_overs() -> None:
    """With host memory for two requests the third waits for it; time adds up to the run."""
    given_ = scenario("oasis", closed_loop(8, 1600, 60))
    on = nodes(1, 1, given_)
    each = run(given_, on).decode_host.peak // 8
    short = dataclasses.replace(given_, host_bytes=int(2.9 * each))
    result = run(short, on)
    assert summarise_cluster(result)["batch_limit"] == "host"
    assert sum(result.run.held_ps.values()) == result.run.requests.finish_ps.max()
