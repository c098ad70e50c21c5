"""Figure 11: which points are run, and what a row holds."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from oasis_sim.hardware import load_profile
from oasis_sim.paper import fig11
from oasis_sim.paper.published import load_published
from oasis_sim.paper.setup import Setup
from oasis_sim.trace import load_trace
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import closed_loop
from tests.engine.scenarios import random_trace


def test_points_cover_models_systems_and_concurrencies() -> None:
    """Two models, five systems, six concurrencies, one context."""
    points = fig11.points(16_384)
    assert len(points) == len(set(points)) == 60
    assert {point.context_tokens for point in points} == {16_384}


def test_every_published_point_of_these_systems_is_run() -> None:
    """No number of these systems at 16K is left out of the comparison."""
    wanted = {
        point
        for point in load_published().values
        if point.table == "fig11"
        and dict(point.keys)["system"] in fig11.SYSTEMS
        and point.metric in fig11.UNITS
    }
    run = [point.keys for point in fig11.points(fig11.CONTEXT_TOKENS)]
    assert all(dict(point.keys) in run for point in wanted)


def test_scenario_of_a_point() -> None:
    """235B is spread over eight GPUs, and only a scheme with offload follows the traces."""
    setup = Setup(load_profile("h100"), "vllm", (random_trace(),))
    sparse = fig11.scenario(setup, fig11.Point("235b", 16_384, "oasis", 32))
    dense = fig11.scenario(setup, fig11.Point("8b", 16_384, "dense", 32))
    assert (sparse.tp, len(sparse.traces), sparse.concurrency) == (8, 1, 32)
    assert (dense.tp, len(dense.traces), dense.concurrency) == (1, 0, 32)


def test_requests_follow_what_runs_together() -> None:
    """Three times the concurrency, or the concurrency and twice what fits into HBM."""
    setup = Setup(load_profile("h100"), "vllm", (random_trace(),))
    few = fig11.scenario(setup, fig11.Point("8b", 16_384, "dense", 8))
    many = fig11.scenario(setup, fig11.Point("8b", 16_384, "dense", 256))
    assert len(few.workload.arrival_ps) == 24
    assert 256 + 2 * 20 <= len(many.workload.arrival_ps) <= 256 + 2 * 26


def test_what_does_not_fit_stays_empty_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card too small for the model there is no number, and a note with the arithmetic."""
    monkeypatch.setattr(fig11, "CONCURRENCIES", (8,))
    profile = load_profile("h100")
    small = replace(profile, gpu=replace(profile.gpu, hbm_bytes=12 * 2**30))
    found = fig11.compare(Setup(small, "vllm", (random_trace(),)), load_published())
    assert len(found.rows) == 10 * len(fig11.UNITS)
    assert all(row.simulated is None for row in found.rows)
    assert any("8b dense: " in note and "does not fit" in note for note in found.notes)


def test_spread_loop_ends_one_by_one() -> None:
    """The first requests have even parts of the output, at least two tokens; the others all."""
    loop = closed_loop(6, 100, 8)
    assert fig11.spread(loop, 4).output_tokens.tolist() == [2, 4, 6, 8, 8, 8]
    assert fig11.spread(closed_loop(9, 100, 8), 8).output_tokens.tolist()[:4] == [2, 2, 3, 4]
    assert loop.output_tokens.tolist() == [8] * 6


def test_think_time_is_one_for_all_but_static_batches() -> None:
    """One value for models, systems with continuous batching, concurrencies and contexts."""
    setup = Setup(load_profile("h100"), "vllm", (random_trace(),))
    points = [point for context in (4_096, 16_384) for point in fig11.points(context)]
    found = {
        (p.system in fig11.OWN_ENGINES, fig11.scenario(setup, p).think_ps)
        for p in points
        if p.model == "8b" or p.system not in fig11.OWN_ENGINES
    }
    assert found == {(False, fig11.THINK_PS), (True, 0)}


def test_a_dense_point_obeys_littles_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running batch = rate x time per token; what is left of a life is prefill and thinking."""
    monkeypatch.setattr(fig11, "CONCURRENCIES", (8,))
    monkeypatch.setattr(fig11, "MODELS", {"8b": ("qwen3-8b", 1)})
    monkeypatch.setattr(fig11, "SYSTEMS", ("dense",))
    found = fig11.compare(Setup(load_profile("h100"), "vllm", ()), load_published())
    rate, batch, tpot_ms = (row.simulated for row in found.rows)
    assert batch == pytest.approx(rate * tpot_ms / 1e3)
    outside_s = 8 * fig11.OUTPUT_TOKENS / rate - (fig11.OUTPUT_TOKENS - 1) * tpot_ms / 1e3
    assert 0.3 < outside_s - fig11.THINK_PS / PS_PER_S < 0.8


@cache
def shipped() -> Setup:
    """Return the inputs of the command."""
    return Setup(load_profile("h100"), "vllm", (load_trace("aime.jsonl"),))


@cache
def shipped_point(model: str, system: str, concurrency: int) -> dict[str, float | None]:
    """Run one point at 16K as shipped."""
    point = fig11.Point(model, fig11.CONTEXT_TOKENS, system, concurrency)
    found = fig11.simulated(shipped(), point)
    assert not isinstance(found, str), found
    return found


@pytest.mark.parametrize("model", fig11.MODELS)
@pytest.mark.parametrize("system", ["oasis", "dense"])
def test_oasis_and_dense_are_within_7_percent(model: str, system: str) -> None:
    """Rate, batch and TPOT where client and prefill matter most, and memory; on average 4 %."""
    published, errors = load_published(), []
    for concurrency in (8, 16, 64, 256):
        keys = fig11.Point(model, fig11.CONTEXT_TOKENS, system, concurrency).keys
        found = shipped_point(model, system, concurrency)
        known = {name: published.value("fig11", keys, name) for name in found}
        errors += [abs((found[name] or 0) / value - 1) for name, value in known.items() if value]
    assert len(errors) == (12 if system == "oasis" else 10)
    assert max(errors) < 0.07
    assert sum(errors) / len(errors) < 0.04


def gain(model: str, concurrency: int) -> float:
    """Return the rate of OasisKV as a multiple of dense."""
    rates = (shipped_point(model, system, concurrency) for system in ("oasis", "dense"))
    oasis, dense = (found["output_tokens_per_s"] for found in rates)
    assert oasis is not None
    assert dense is not None
    return oasis / dense


@pytest.mark.parametrize(("model", "arrow"), [("8b", 2.1), ("235b", 1.9)])
def test_arrows_at_256(model: str, arrow: float) -> None:
    """The published gains at the highest concurrency, to a tenth."""
    assert gain(model, 256) == pytest.approx(arrow, abs=0.1)


def test_235b_overtakes_dense_between_16_and_64() -> None:
    """OasisKV loses on 235B at low concurrency, on 8B nowhere."""
    assert gain("235b", 16) < 1 < gain("235b", 64)
    assert gain("8b", 8) > 1


@pytest.fixture(scope="module")
def baselines() -> dict[tuple[str, str, int], dict[str, float | None] | str]:
    """Run every 8B point of the systems with engines of their own, as shipped."""
    found = {}
    for point in fig11.points(fig11.CONTEXT_TOKENS):
        if point.model == "8b" and point.system in fig11.OWN_ENGINES:
            found[point.model, point.system, point.concurrency] = fig11.simulated(shipped(), point)
    return found


def test_baselines_are_within_15_percent_and_out_of_memory_where_the_paper_has_no_point(
    baselines: dict[tuple[str, str, int], dict[str, float | None] | str],
) -> None:
    """Rate, batch and TPOT at each published point; no number, and the reason, elsewhere."""
    published = load_published()
    for (model, system, concurrency), metrics in baselines.items():
        keys = fig11.Point(model, fig11.CONTEXT_TOKENS, system, concurrency).keys
        for metric in fig11.UNITS:
            known = published.value("fig11", keys, metric)
            if known is None:
                assert isinstance(metrics, str), (system, concurrency)
                assert "does not fit" in metrics
            else:
                assert not isinstance(metrics, str), metrics
                assert metrics[metric] == pytest.approx(known, rel=0.15), (system, concurrency)


def test_baselines_are_unsupported_on_several_gpus() -> None:
    """The original code bases run on one GPU: 235B has no number, and says why."""
    setup = Setup(load_profile("h100"), "vllm", (random_trace(),))
    reason = fig11.simulated(setup, fig11.Point("235b", 16_384, "shadowkv", 8))
    assert reason == "engine shadowkv runs on one GPU, not with tp=8"


def test_another_engine_is_used_for_all_systems() -> None:
    """Asked for an engine by name, every system runs in it."""
    for engine in ("roofline", "vllm"):
        setup = Setup(load_profile("h100"), engine, ())
        own = "freekv" if engine == "vllm" else engine
        assert fig11.engine_of(setup, "freekv") == own
        assert fig11.engine_of(setup, "oasis") == engine
