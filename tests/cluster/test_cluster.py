"""Disaggregated serving: conservation, limits that are known exactly, and what partial saves."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.cluster import ClusterResult, decode, simulate_cluster, transport
from oasis_sim.cluster.apart import Front
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.series import BIN_PS, Changes, Level, Series
from oasis_sim.engine import simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.walks import build_walks
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.metrics import summarise_cluster
from oasis_sim.plan.pool import run_jobs
from oasis_sim.report.directory import cluster_files
from oasis_sim.workload import closed_loop, poisson
from tests.cluster.scenarios import INFINITE, cluster, nodes, run, scenario
from tests.engine.scenarios import card

FAULTS = (
    (),
    ("link:node=prefill0,at=100ms,for=200ms,share=0.01",),
    ("link:node=decode0,at=50ms,share=0.1",),
    ("completion:share=0.1,delay=3ms",),
    ("completion:share=0.2,lost", "timeout:after=20ms"),
    ("prefill:node=0,at=150ms,for=300ms", "timeout:after=10ms"),
    ("prefill:node=0,at=150ms,for=1ms", "link:node=decode0,at=10ms,for=400ms,share=0.001"),
)


@settings(max_examples=40, deadline=None)
@given(
    prefill=st.integers(1, 3),
    decode_nodes=st.integers(1, 3),
    scheme=st.sampled_from(["oasis", "dense"]),
    full=st.booleans(),
    rate=st.sampled_from([5.0, 40.0, 1000.0]),
    requests=st.integers(1, 14),
    prompt=st.integers(1, 2000),
    output=st.integers(1, 60),
    concurrency=st.none() | st.integers(1, 5),
    hits=st.sampled_from([0.0, 0.5, 1.0]),
    faults=st.sampled_from(FAULTS),
)
def test_requests_and_bytes_are_conserved(**drawn: Any) -> None:
    """Whatever breaks, every request gets all its tokens and every byte is accounted for."""
    load = poisson(drawn["rate"], drawn["requests"], drawn["prompt"], drawn["output"], 1)
    kept = scenario(drawn["scheme"], load, concurrency=drawn["concurrency"])
    on = nodes(
        drawn["prefill"],
        drawn["decode_nodes"],
        kept,
        *drawn["faults"],
        prefix_hits=drawn["hits"],
    )
    if drawn["full"]:
        on = dataclasses.replace(on, transfer="full")
    result = run(kept, on)
    log = result.run.requests
    assert (log.status == 0).all()
    assert int(result.run.steps.output_tokens.sum()) == drawn["requests"] * drawn["output"]
    assert summarise_cluster(result)["requests"]["completed"] == drawn["requests"]


def test_littles_law() -> None:
    """Mean residents on decode nodes x time = sum of the times that requests are there."""
    result = run(given := scenario(), nodes(1, 2, given))
    there = result.run.requests.finish_ps - result.hand_overs.sent_ps
    end = int(result.run.requests.finish_ps.max())
    assert result.resident_mean * end == pytest.approx(there.sum(), rel=1e-9)
    assert result.timeline.resident.sum() * result.timeline.bin_ps == pytest.approx(
        there.sum(), rel=1e-9
    )


def test_full_transfer_over_an_infinite_network_decodes_as_at_home() -> None:
    """One request: the steps take what the decode steps of a single node take."""
    alone = scenario("dense", closed_loop(1, 1600, 40), concurrency=1)
    local = simulate(alone).steps
    apart = run(alone, cluster(alone, network_changes=INFINITE)).run.steps
    here = (local.end_ps - local.start_ps)[local.prefill_tokens == 0]
    np.testing.assert_array_equal(here, apart.end_ps - apart.start_ps)


@pytest.mark.parametrize(("tp", "copies"), [(2, 1), (4, 2)])
def test_nodes_of_several_gpus(tp: int, copies: int) -> None:
    """Their GPUs gather for the heads that they hold; the network brings each block once."""
    one, several = (run(given, cluster(given)) for given in (scenario(), scenario(tp=tp)))
    assert one.fetched_bytes == several.fetched_bytes > 0
    assert several.run.totals.h2d_bytes == copies * one.run.totals.h2d_bytes > 0


def test_a_request_alone_has_no_queue() -> None:
    """TTFT is prefill, extra step and network; nothing else."""
    alone = scenario("oasis", closed_loop(1, 1600, 40), concurrency=1)
    result = run(alone, cluster(alone))
    moves = result.hand_overs
    assert moves.prefill_start_ps[0] == result.run.requests.arrival_ps[0]
    assert moves.sent_ps[0] == moves.prefill_end_ps[0]
    assert moves.ready_ps[0] == result.run.requests.first_token_ps[0]
    summary = summarise_cluster(result)
    parts = summary["disaggregation"]["ttft_parts_ms"]
    total = sum(part["mean"] for part in parts.values())
    assert summary["latency"]["ttft_ms"]["mean"] == pytest.approx(total)


@pytest.mark.parametrize(("scheme", "output"), [("dense", 1), ("oasis", 1), ("oasis", 2)])
def test_requests_that_prefill_ends_have_their_parts_of_ttft(scheme: str, output: int) -> None:
    """Nothing is handed over; queue and prefill are all of TTFT."""
    given = scenario(scheme, closed_loop(6, 1600, output))
    summary = summarise_cluster(run(given, nodes(1, 1, given)))
    nodes_part, ttft = summary["disaggregation"], summary["latency"]["ttft_ms"]
    parts = nodes_part["ttft_parts_ms"]
    assert nodes_part["handed_over"] == 0
    assert [part["samples"] for part in parts.values()] == [6] * 4
    assert parts["room"]["mean"] == parts["network"]["mean"] == 0
    assert parts["queue"]["mean"] > 0
    whole = parts["queue"]["mean"] + parts["prefill"]["mean"]
    assert whole == pytest.approx(ttft["mean"], rel=1e-7)


def test_partial_sends_less_and_fetches_the_rest_when_needed() -> None:
    """Less at first, less in all, less host memory; at most the prompt ever comes."""
    given = scenario()
    partial, full = run(given, cluster(given)), run(given, cluster(given, "full"))
    prompt = 1600 * 2 * 2 * 64 * 2 * 4
    assert (full.hand_overs.union_bytes == prompt).all()
    assert (partial.hand_overs.union_bytes < prompt).all()
    came = partial.hand_overs.union_bytes + partial.hand_overs.fetched_bytes
    assert (partial.hand_overs.fetched_bytes > 0).all()
    assert (came <= prompt + 2 * 4 * 16 * 2 * 64 * 2 * 2).all()
    assert partial.decode_host.mean < full.decode_host.mean
    assert partial.network_bytes < full.network_bytes


def test_prefix_hits_bring_the_first_token_forward() -> None:
    """More hits, less prefill; with all of it there only one token is left to compute."""
    given = scenario()
    first = []
    for hits in (0.0, 0.5, 1.0):
        log = run(given, cluster(given, prefix_hits=hits)).run.requests
        first.append(float((log.first_token_ps - log.arrival_ps).mean()))
    assert first[0] > first[1] > first[2]


def test_the_same_run_twice_is_the_same() -> None:
    """No result depends on chance."""
    given = scenario()
    one, two = (run(given, nodes(2, 2, given)) for _ in range(2))
    for part in ("steps", "requests"):
        for field in dataclasses.fields(getattr(one.run, part)):
            pair = (getattr(getattr(each.run, part), field.name) for each in (one, two))
            np.testing.assert_array_equal(*pair, err_msg=field.name)
    np.testing.assert_array_equal(one.timeline.network_bytes, two.timeline.network_bytes)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all nodes be simulated together, whatever they hold."""
    monkeypatch.setattr(Front, "memory_suffices", lambda *_: False)


@pytest.mark.parametrize("scheme", ["oasis", "dense"])
def test_nodes_apart_do_what_they_do_together(request: pytest.FixtureRequest, scheme: str) -> None:
    """Where nothing flows back, each decode node may be simulated by itself."""
    given = scenario(scheme, poisson(200.0, 30, 1600, 40, 5))
    apart = run(given, nodes(2, 3, given))
    request.getfixturevalue("together")
    joint = run(given, nodes(2, 3, given))
    for field in ("start_ps", "end_ps", "network_bytes", "sparse_rows", "dense_rows"):
        pair = (getattr(each.run.steps, field) for each in (apart, joint))
        np.testing.assert_array_equal(*pair, err_msg=field)
    for field in ("first_token_ps", "finish_ps", "generated_tokens"):
        pair = (getattr(each.run.requests, field) for each in (apart, joint))
        np.testing.assert_array_equal(*pair, err_msg=field)
    for field in dataclasses.fields(apart.hand_overs):
        pair = (getattr(each.hand_overs, field.name) for each in (apart, joint))
        np.testing.assert_array_equal(*pair, err_msg=field.name)
    assert (apart.decode_host, apart.staging) == (joint.decode_host, joint.staging)
    np.testing.assert_allclose(apart.timeline.network_bytes, joint.timeline.network_bytes)
    np.testing.assert_allclose(apart.timeline.decode_host_bytes, joint.timeline.decode_host_bytes)


def test_two_processes_give_what_one_gives() -> None:
    """The very bytes of the run directory are the same."""
    given = scenario()
    on = nodes(2, 2, given)
    texts = []
    for workers in (1, 2):
        result = simulate_cluster(given, on, jobs=partial(run_jobs, workers=workers))
        texts.append(cluster_files(result, "config", summarise_cluster(result)))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("ahead", [1, 7, 1000])
@pytest.mark.usefixtures("together")
def test_how_far_a_node_runs_ahead_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Steps and requests are those of the usual number of steps ahead."""
    given = scenario()
    usual = run(given, nodes(2, 2, given))
    monkeypatch.setattr(decode, "STEPS_AHEAD", ahead)
    other = run(given, nodes(2, 2, given))
    for field in ("start_ps", "end_ps", "network_bytes", "sparse_rows"):
        pair = (getattr(each.run.steps, field) for each in (usual, other))
        np.testing.assert_array_equal(*pair, err_msg=field)
    np.testing.assert_array_equal(usual.run.requests.finish_ps, other.run.requests.finish_ps)


def test_staging_is_held_until_the_end_with_partial_fetching() -> None:
    """Full transfer frees the prefill node when the KV has arrived."""
    given = scenario()
    partial, full = run(given, cluster(given)), run(given, cluster(given, "full"))
    assert full.staging.mean < partial.staging.mean
    assert full.staging.left == partial.staging.left == 0


def test_scarce_staging_delays_prefill_and_is_never_exceeded() -> None:
    """With room for two prompts a third waits until one has ended."""
    given = scenario()
    prompt = 1600 * TOKEN
    scarce = run(given, cluster(given, remote_bytes=2 * prompt))
    assert scarce.staging.peak <= 2 * prompt
    ample = run(given, cluster(given))
    assert scarce.run.requests.finish_ps.max() > ample.run.requests.finish_ps.max()


TOKEN = 2 * 2 * 64 * 2 * 4
"""KV bytes of a token of the tiny model."""


def test_a_prompt_that_fits_no_prefill_node_is_refused_with_the_arithmetic() -> None:
    """The message names tokens, bytes and the option."""
    with pytest.raises(RunFailed, match=r"1,600 tokens x 2,048 bytes .*--remote-memory"):
        cluster(scenario(), remote_bytes=1000)


def test_a_request_that_fits_no_decode_node_is_rejected() -> None:
    """HBM too small for one request: nothing is simulated, the arithmetic is given."""
    given = scenario(profile=card(20_000_000))
    with pytest.raises(RunFailed, match="no request fits: request 0"):
        simulate_cluster(given, cluster(given))


@pytest.mark.parametrize(
    ("changes", "transfer", "message"),
    [
        ({"scheme": "dense"}, "partial", "--transfer full"),
        ({"scheme": "quest"}, "full", "run it as dense"),
        ({"scheme": "on-demand"}, "partial", "too late"),
        ({"scheme": "oasis-speculative"}, "partial", "cannot run disaggregated"),
        ({"scheme": "oasis", "max_steps": 3}, "partial", "--steps"),
        ({"scheme": "oasis", "engine_name": "freekv"}, "full", "static batches"),
    ],
)
def test_combinations_without_meaning_are_refused(
    changes: dict[str, Any], transfer: str, message: str
) -> None:
    """Each says what to do instead."""
    given = scenario(changes.pop("scheme"), **changes)
    with pytest.raises(UsageError, match=message):
        cluster(given, transfer)


# Faults


def test_a_slow_link_delays_what_crosses_it() -> None:
    """At a thousandth of its rate for a while, first tokens come later, bytes stay the same."""
    given = scenario()
    well = run(given, nodes(1, 1, given))
    slow = run(given, nodes(1, 1, given, "link:node=decode0,at=0s,for=400ms,share=0.001"))
    assert mean_ttft(slow) > 2 * mean_ttft(well)
    assert slow.hand_over_bytes == well.hand_over_bytes
    assert slow.fetched_bytes == well.fetched_bytes


def test_faults_that_overlap_hold_together() -> None:
    """A short fault within a long one changes nothing, and two that touch are one."""
    given = scenario("dense")
    slow, dead = "link:node=decode0,share=0.01,at={},for={}", "prefill:node=0,at={},for={}"
    for text in (slow, dead):
        one = run(given, nodes(1, 1, given, text.format("50ms", "300ms")))
        inner = text.format("100ms", "20ms")
        for texts in (
            (text.format("50ms", "300ms"), inner),
            (text.format("50ms", "100ms"), text.format("150ms", "200ms")),
        ):
            both = run(given, nodes(1, 1, given, *texts))
            ends = (each.run.requests.finish_ps for each in (one, both))
            np.testing.assert_array_equal(*ends)


def test_equal_hand_overs_at_once_end_together_at_the_rate_of_the_nic() -> None:
    """Four from four prefill nodes into one NIC take four times their bytes at its rate."""
    given = scenario("dense", closed_loop(4, 20_000, 4))
    on = nodes(4, 1, given)
    moves = run(given, on).hand_overs
    took = moves.ready_ps - moves.sent_ps
    assert len(set(moves.ready_ps.tolist())) == 1
    rate = on.network.rails * on.network.rail_bytes_per_s
    rate *= on.network.efficiency.at(on.network.coalesce_bytes)
    assert took[0] == pytest.approx(moves.union_bytes.sum() / rate * 10**12, rel=0.01)


def test_lost_completions_are_sent_again_after_the_time_out() -> None:
    """Bytes in vain are those sent again."""
    given = scenario()
    lost = run(given, nodes(1, 1, given, "completion:share=0.25,lost", "timeout:after=30ms"))
    assert lost.vain_bytes == lost.hand_overs.resent_bytes.sum() > 0
    assert mean_ttft(lost) > mean_ttft(run(given, nodes(1, 1, given)))


@pytest.mark.parametrize("share", ["0.001", "0.25", "0.6", "0.7", "0.999", "1"])
def test_a_share_of_completions_is_hit_exactly(share: str) -> None:
    """Of the first n completions floor(n * share) are hit, for every n."""
    fault = nodes(1, 1, scenario(), f"completion:share={share},delay=1ms").faults.completion
    assert fault is not None
    hits = np.cumsum([fault.hits(number) for number in range(1, 2001)])
    assert hits.tolist() == [n * int(float(share) * 1000 + 0.5) // 1000 for n in range(1, 2001)]


def test_losing_most_completions_still_ends() -> None:
    """At share 0.7 of n + r completions floor(0.7 (n + r)) = r are sent again; n arrive."""
    given = scenario("dense", closed_loop(6, 1600, 10), concurrency=2)
    lost = run(given, nodes(1, 1, given, "completion:share=0.7,lost", "timeout:after=30ms"))
    resent = lost.vain_bytes // lost.hand_overs.union_bytes[0]
    assert (6 + resent) * 7 // 10 == resent


def test_a_hand_over_that_is_always_lost_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which one; nothing goes on for ever."""
    given = scenario()
    monkeypatch.setattr(transport, "MOST_SENDS", 3)
    with pytest.raises(RunFailed, match=r"request \d+ from prefill0 to decode0 was sent 3"):
        run(given, nodes(1, 1, given, "completion:share=0.999,lost", "timeout:after=30ms"))


def test_late_completions_stall_steps() -> None:
    """Fetches that are noticed late hold the foreground up."""
    given = scenario()
    late = run(given, nodes(1, 1, given, "completion:share=0.5,delay=5ms")).run.steps
    well = run(given, nodes(1, 1, given)).run.steps
    assert (late.end_ps - late.start_ps).max() > (well.end_ps - well.start_ps).max() + 5 * 10**9


def test_a_dead_prefill_node_costs_recomputation() -> None:
    """Its requests start again on the other node, with what they had generated."""
    given = scenario()
    dead = run(given, nodes(2, 1, given, "prefill:node=0,at=300ms", "timeout:after=50ms"))
    again = dead.hand_overs.recomputed_tokens > 0
    assert again.any()
    assert (dead.hand_overs.recomputed_tokens[again] >= 1600).all()
    assert (dead.hand_overs.prefill_node[again] == 1).all()
    assert dead.stalled_ps == 50 * 10**9
    assert (dead.run.requests.preemptions[again] == 1).all()


def test_without_a_prefill_node_the_run_fails() -> None:
    """When none comes back, the message says how many wait."""
    given = scenario()
    with pytest.raises(RunFailed, match="wait for a prefill node"):
        run(given, nodes(1, 1, given, "prefill:node=0,at=100ms"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fire:at=1s",
        "link:node=decode0,at=1s",
        "link:node=decode1,at=1s,share=0.1",
        "link:node=decode0,at=1,share=0.1",
        "link:node=decode0,at=1s,share=0",
        "link:node=decode0,at=1s,share=nan",
        "link:node=decode0,at=1s,share=0.1,colour=red",
        "prefill:node=7,at=1s",
        "prefill:node=0",
        "completion:share=0.1",
        "completion:share=0.1,lost,delay=1s",
        "completion:share=0.1,share=0.2,lost",
        "completion:share=0.1,lost=no",
        "completion:share=0.1,lost=",
        "completion:share=1,lost",
        "link:node=decode0,at=1s, at=2s,share=0.5",
        "timeout:after=soon",
    ],
)
def test_faults_that_cannot_be_read_are_refused(text: str) -> None:
    """The message repeats the text and shows how one is written."""
    with pytest.raises(UsageError, match="for example link:node="):
        nodes(1, 1, scenario(), text)


@pytest.mark.parametrize(
    "texts",
    [
        ("completion:share=0.1,lost", "completion:share=0.2,delay=1ms"),
        ("timeout:after=1s", "timeout:after=1s"),
    ],
)
def test_faults_of_which_there_is_one_are_not_replaced(texts: tuple[str, str]) -> None:
    """A second one is refused, even the same again, with both texts."""
    with pytest.raises(UsageError, match=f"is a second .*'{texts[0]}'"):
        nodes(1, 1, scenario(), *texts)


# Parts


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(0, 10**13), st.floats(0, 1e9)), max_size=20
    )
)
def test_series_keep_their_sum(parts: list[tuple[int, int, float]]) -> None:
    """Spread over bins, the amounts add up."""
    series = Series()
    for start, length, amount in parts:
        series.add(start, start + length, amount)
    assert series.values().sum() == pytest.approx(sum(amount for *_, amount in parts))


def test_a_level_knows_its_mean_and_peak() -> None:
    """Ten held for a quarter of the time and five for half, noted in any order."""
    one, two = Changes(), Changes()
    one.add(75, -5)
    one.add(0, 10)
    two.add(25, -5)
    level = Level([one, two])
    assert (level.peak, level.left) == (10, 0)
    assert level.mean(100) == 5.0
    assert level.bins().sum() * BIN_PS == pytest.approx(500.0)


def test_needs_follow_the_trace() -> None:
    """Union and what is fetched are blocks of the prompt; phases differ between requests."""
    given = scenario()
    share = CostModel(given.profile, "vllm", given.model, given.scheme, 1).share
    walks = build_walks(given.traces, given.scheme, share, None, 0)
    growth = Growth(given, walks)
    one, two = growth.need(0, 1600), growth.need(1, 1600)
    assert one.union == two.union
    assert one.table is two.table
    assert one.phase != two.phase
    size = walks.tables.group_size
    fetched = [one.fetched(step, size) for step in range(41)]
    assert fetched[0] == 0
    assert fetched == sorted(fetched)
    assert one.union + fetched[-1] <= (100 + 2) * given.model.layers


def mean_ttft(result: ClusterResult) -> float:
    """Return the mean time to the first token in picoseconds."""
    log = result.run.requests
    return float((log.first_token_ps - log.arrival_ps).mean())
