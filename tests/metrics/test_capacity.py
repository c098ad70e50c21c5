"""What fits, what limits the batch, and whether the load is more than is served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oasis_sim.engine import simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.holdups import HOLDUPS
from oasis_sim.engine.result import RunResult
from oasis_sim.metrics import summarise
from oasis_sim.metrics.overload import offered
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import Workload, closed_loop, poisson
from tests.engine.scenarios import card, scenario
from tests.factories import GB, tiny_requests, tiny_result, tiny_scenario, tiny_steps


def asked(prompt: int, requests: int, concurrency: int | None) -> RunResult:
    """Return a hand-made run (54 GB for KV, 200 GB of host) with another load."""
    load = closed_loop(requests, prompt, 4)
    return tiny_result(scenario=tiny_scenario(workload=load, concurrency=concurrency))


@pytest.mark.parametrize(
    ("held", "limit", "share"),
    [
        ({"requests": 5}, "requests", 1.0),
        ({"arrivals": 3, "prefill": 4}, "prefill", 4 / 7),
        ({"hbm": 1, "prefill": 4, "requests": 5}, "hbm", 0.1),
        ({"hbm": 1, "host": 2, "arrivals": 1}, "host", 0.5),
        ({"prefill_nodes": 2, "concurrency": 1, "requests": 7}, "prefill_nodes", 0.2),
        ({"prefill_nodes": 1, "arrivals": 3}, "arrivals", 0.75),
    ],
)
def test_the_longest_holdup_is_named(held: dict[str, int], limit: str, share: float) -> None:
    """Where something was refused, prefill and the end of the requests do not count."""
    run = tiny_result(held_ps=dict.fromkeys(HOLDUPS, 0) | held)
    found = summarise(run)
    assert found["batch_limit"] == limit
    assert found["batch_limit_share_of_time"] == pytest.approx(share)


def test_what_fits_is_counted_in_the_phase_in_which_requests_decode() -> None:
    """A request under the budget stays dense: 54 GB / 2 GB; one above it needs 0.5 GB."""
    short, long = summarise(asked(1_000, 9, 2))["tiers"], summarise(asked(16_384, 9, 2))["tiers"]
    assert (27, 108) == (short["hbm"]["requests_that_fit"], long["hbm"]["requests_that_fit"])
    assert (2 * GB, GB // 2) == tuple(
        tiers["hbm"]["decode_request_bytes"] for tiers in (short, long)
    )
    assert 100 == long["host"]["requests_that_fit"]


def test_without_kv_in_host_memory_nothing_fits_there() -> None:
    """Null, not zero and not infinity, where the scheme does not use the host."""
    found = summarise(simulate(scenario("dense")))
    assert found["tiers"]["host"]["requests_that_fit"] is None


def test_no_more_requests_run_than_fit() -> None:
    """The count agrees with what the engine admits when host memory is short."""
    short = scenario(
        "oasis", profile=card(8 * 10**9, 2_500_000), workload=closed_loop(12, 1024, 40)
    )
    found = summarise(simulate(replace(short, concurrency=12)))
    assert "host" == found["batch_limit"]
    assert found["tiers"]["host"]["requests_that_fit"] == found["steps"]["running_batch"]["max"]


@pytest.mark.parametrize(
    ("scheme", "engine"),
    [("freekv", "vllm"), ("oasis-fp8", "vllm"), ("shadowkv", "vllm"), ("oasis", "roofline")],
)
def test_the_limit_of_the_link_is_what_the_engine_priced(scheme: str, engine: str) -> None:
    """Utilisation is against the cost model's own rate, so that it never exceeds 100 %."""
    run = simulate(scenario(scheme, engine))
    asked_for = run.scenario
    cost = CostModel(asked_for.profile, engine, asked_for.model, asked_for.scheme, 1)
    link = summarise(run)["links"]["pcie_h2d"]
    expected = PS_PER_S / cost.transfer_ps_per_byte() / 1e9
    assert link["limit_gb_per_s"] == pytest.approx(expected)
    assert 0 < link["utilisation"] <= 1


def test_freekv_moves_pages_of_two_blocks() -> None:
    """The rate is that of 32 tokens (5 GB/s at 16 KiB), not of the trace's blocks (2.6 GB/s)."""
    run = tiny_result(scenario=tiny_scenario(scheme=load_scheme("freekv")))
    assert 5.0 == summarise(run)["links"]["pcie_h2d"]["limit_gb_per_s"]


def arriving(gap_ps: int, first_after_ps: list[int]) -> RunResult:
    """Return a run of equally spaced arrivals, each answered after a time of its own."""
    count = len(first_after_ps)
    due = np.arange(count, dtype=np.int64) * gap_ps
    load = Workload("made", "csv", due, np.full(count, 1_000), np.full(count, 4))
    first = due + np.array(first_after_ps, dtype=np.int64)
    parts: dict[str, Any] = {
        name: np.full(count, value)
        for name, value in (("prompt_tokens", 1_000), ("output_tokens", 4), ("generated_tokens", 4))
    }
    log = tiny_requests(
        arrival_ps=due,
        admitted_ps=first,
        first_token_ps=first,
        finish_ps=first,
        preemptions=np.zeros(count, dtype=np.int32),
        status=np.zeros(count, dtype=np.uint8),
        **parts,
    )
    end = np.array([int(first.max())], dtype=np.int64)
    steps = tiny_steps(1, start_ps=end - 1, end_ps=end)
    return tiny_result(
        scenario=tiny_scenario(workload=load, concurrency=None), requests=log, steps=steps
    )


def test_an_overload_is_told_with_both_rates() -> None:
    """One arrives each second and one in two is answered: ten of twenty-one wait at the end."""
    run = arriving(PS_PER_S, [i * PS_PER_S for i in range(21)])
    load = offered(run)
    assert load is not None
    assert (1.0, 11 / 20, 10, 5) == (
        load.arrive_per_s,
        load.answered_per_s,
        load.waiting,
        load.waiting_half_way,
    )
    note = next(note for note in summarise(run)["notes"] if note.startswith("overload"))
    assert "1 requests/s arrive and 0.55 are answered" in note
    assert "10 wait" in note


def test_a_load_that_is_served_is_no_overload() -> None:
    """A constant wait is a queue that does not grow, however long it is."""
    for wait in (0, 5 * PS_PER_S):
        run = arriving(PS_PER_S, [wait] * 41)
        assert not any("overload" in note for note in summarise(run)["notes"])
    assert 1.0 == summarise(run)["throughput"]["offered_requests_per_s"]


def test_a_closed_loop_offers_nothing() -> None:
    """Requests that are all there from the start have no rate."""
    assert summarise(tiny_result())["throughput"]["offered_requests_per_s"] is None


def test_a_simulated_overload_is_noticed() -> None:
    """Arrivals at many times the rate of prefill give the note, at a small part of it none."""
    for rate, expected in ((1e6, True), (1.0, False)):
        load = scenario("dense", workload=poisson(rate, 60, 1024, 40, 0), concurrency=None)
        notes = summarise(simulate(load))["notes"]
        assert expected == any(note.startswith("overload") for note in notes)


def test_arrivals_limit_a_batch_that_memory_would_not() -> None:
    """With a request now and then the batch is small because few arrive."""
    load = scenario("oasis", workload=poisson(1.0, 6, 1024, 40, 0), concurrency=None)
    assert "arrivals" == summarise(simulate(load))["batch_limit"]


def test_a_run_that_is_stopped_in_prefill_waits_for_prefill() -> None:
    """Host memory would refuse the sixth request later; two steps never ask for it."""
    load = scenario("oasis", workload=closed_loop(12, 8_192, 40), concurrency=None, max_steps=2)
    found = summarise(simulate(load))
    assert ("prefill", 1.0) == (found["batch_limit"], found["batch_limit_share_of_time"])


def test_one_long_request_does_not_make_memory_the_limit() -> None:
    """Nothing was refused, though a batch of the longest request would not fit."""
    load = closed_loop(40, 1_024, 40)
    prompts = load.prompt_tokens.copy()
    prompts[0] = 60_000
    mixed = scenario(
        "oasis",
        profile=card(8 * 10**9, 100_000_000),
        workload=replace(load, prompt_tokens=prompts),
        concurrency=None,
    )
    result = simulate(mixed)
    found = summarise(result)
    assert found["tiers"]["host"]["requests_that_fit"] < found["steps"]["running_batch"]["max"]
    assert found["batch_limit"] not in ("hbm", "host")
    assert result.held_ps["host"] == 0


def test_proxies_need_a_row_that_selected() -> None:
    """Where no sparse row was decoded the proxies are null, whatever the trace says."""
    run = simulate(scenario("oasis", workload=closed_loop(3, 16, 1)))
    assert not run.steps.sparse_rows.any()
    quality = summarise(run)["quality"]
    assert quality["topk_agreement"] is None
    assert quality["attention_mass"] == {"mean": None, "p5": None}
    assert quality["lost_mass"] == {"mean": None, "p95": None}
