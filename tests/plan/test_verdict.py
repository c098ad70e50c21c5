"""What a search asks of nodes is answered early, and as the whole simulation answers it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.cluster import ClusterRun
from oasis_sim.engine.spec import DisaggregationSpec, LoadSpec, ScenarioSpec
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.outcome import begun
from oasis_sim.plan.prober import Prober
from oasis_sim.plan.slo import parse_slo
from oasis_sim.plan.verdict import at_least
from oasis_sim.report.directory import cluster_files
from oasis_sim.scheme import load_scheme

SLO = "ttft_p90=300ms,ttft_mean=250ms,tpot_p95=12ms,e2e_p50=400ms,itl_p99=20ms"
FAULTS = ((), ("prefill:node=0,at=200ms,for=300ms", "timeout:after=20ms"))


def spec_of(**changes: Any) -> ScenarioSpec:
    """Return a small load on one node of each kind, whose HBM holds two requests at once."""
    load = LoadSpec("poisson", 60, rate_per_s=60.0, context_tokens=3000, output_tokens=40)
    spec = ScenarioSpec(
        scheme=load_scheme("dense"),
        load=load,
        concurrency=None,
        disaggregation=DisaggregationSpec(1, 1, "roce-100", "full"),
        hbm_bytes=int(24.4 * 2**30),
    )
    return replace(spec, **changes)


def run_of(spec: ScenarioSpec) -> ClusterRun:
    """Return the run of a scenario that nobody has looked at."""
    inputs = Inputs()
    return begun(spec, inputs.scenario(spec), inputs)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([10.0, 60.0, 2000.0]),
    st.none() | st.integers(1, 20),
    st.sampled_from(FAULTS),
)
def test_what_is_certain_stays_true(
    prefill: int, decode: int, rate: float, concurrency: int | None, faults: tuple[str, ...]
) -> None:
    """No reading and no share ends lower than it was said to be, at any moment of the run."""
    load = replace(spec_of().load, rate_per_s=rate)
    nodes = DisaggregationSpec(prefill, decode, "roce-100", "full", faults=faults)
    spec = spec_of(load=load, concurrency=concurrency, disaggregation=nodes)
    targets = parse_slo(SLO)
    known = [at_least(so_far, targets) for so_far in run_of(spec).looks()]
    end = Prober(spec, targets, Inputs()).on_nodes(prefill, decode)
    for each in known:
        for least, reading in zip(each.readings, end.readings, strict=True):
            assert least.value_ms is not None
            assert reading.value_ms is not None
            assert least.value_ms <= reading.value_ms
        assert each.waiting_share <= end.waiting_share
        assert each.room_share <= end.room_share
        assert each.spare_prefill or not end.spare_prefill
        assert each.met or not end.met
        assert end.lacks_decode_nodes or not each.lacks_decode_nodes


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("decode", [1, 4])
def test_answers_are_those_of_the_whole_run(faults: tuple[str, ...], decode: int) -> None:
    """Asked one by one, in any order, a verdict says what the probe of the whole run says."""
    nodes = DisaggregationSpec(3, decode, "roce-100", "full", faults=faults)
    spec = spec_of(disaggregation=nodes)
    probe = Prober(spec, parse_slo(SLO), Inputs()).on_nodes(3, decode)
    for names in (("met", "spare_prefill"), ("lacks_decode_nodes", "met")):
        verdict = Prober(spec, parse_slo(SLO), Inputs()).verdict(3, decode)
        assert [getattr(probe, name) for name in names] == [getattr(verdict, n) for n in names]
        assert verdict.whole() == probe


def test_a_queue_that_grows_is_not_simulated_to_its_end() -> None:
    """The answers are there while requests are still to come, and what follows is not lost."""
    load = replace(spec_of().load, requests=300)
    spec = spec_of(load=load, disaggregation=DisaggregationSpec(8, 1, "roce-100", "full"))
    run, targets = run_of(spec), parse_slo("ttft_p95=200ms")
    missed = next(each for each in run.looks() if not at_least(each, targets).met)
    assert not missed.all_there
    slow = next(each for each in run.looks() if at_least(each, targets).lacks_decode_nodes)
    assert slow.all_there
    assert (slow.requests.finish_ps < 0).any()
    ended, whole = run.result(), run_of(spec).result()
    assert cluster_files(ended, "", {}) == cluster_files(whole, "", {})


def test_only_what_may_fail_is_counted_as_not_enough(beside: Path) -> None:
    """Nodes that a fault leaves without a prefill node miss; the reason is kept."""
    fault = ("prefill:node=0,at=1ms",)
    spec = spec_of(disaggregation=DisaggregationSpec(1, 1, "roce-100", "full", faults=fault))
    verdict = Prober(spec, parse_slo(SLO), Inputs()).verdict(1, 1)
    assert not verdict.met
    assert "none is left" in verdict.whole().failure
