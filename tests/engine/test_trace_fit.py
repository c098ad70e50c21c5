"""A trace that says nothing about a selection is refused; one of another case is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.engine import simulate
from oasis_sim.engine.trace_fit import check_traces, trace_notes
from oasis_sim.errors import InputError
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.trace import load_trace
from oasis_sim.workload import closed_loop
from tests.engine.scenarios import scenario


def test_a_trace_that_fits_into_the_budget_is_refused() -> None:
    """Its last step has no block outside the selection, so that nothing could be missing."""
    run = scenario("oasis", workload=closed_loop(2, 1_024, 40))
    attended = run.scheme.attended_tokens_max
    trace = run.traces[0]
    short = replace(trace, position=trace.position - trace.position[-1] + attended - 1)
    with pytest.raises(InputError, match="cannot say what a selection misses"):
        simulate(replace(run, traces=(short,)))
    one_more = replace(trace, position=short.position + run.scheme.block_tokens)
    check_traces((one_more,), run.scheme, 1_064)


def test_any_trace_will_do_where_nothing_is_selected() -> None:
    """Requests that never outgrow the budget attend all their blocks."""
    run = scenario("oasis", workload=closed_loop(2, 100, 10))
    trace = run.traces[0]
    assert 110 <= run.scheme.attended_tokens_max
    check_traces((replace(trace, position=trace.position * 0 + 50),), run.scheme, 110)


def test_a_trace_of_another_model_or_context_is_told() -> None:
    """One line names what was recorded and what is simulated; a trace of the same case has none."""
    trace = load_trace("smollm2-prose")
    run = replace(scenario("oasis", workload=closed_loop(2, 100_000, 40)), traces=(trace,))
    (line,) = trace_notes(run)
    about = "6 full-attention layers of 30, 3 KV heads, 4,097 to 4,160 tokens"
    assert f"SmolLM2-135M-Instruct, {about}" in line
    assert "100,000 to 100,040 tokens" in line
    model = replace(
        run.model, name="SmolLM2-135M-Instruct", layers=trace.layers, kv_heads=trace.kv_heads
    )
    same = replace(run, model=model, workload=closed_loop(2, 4_100, 40))
    assert trace_notes(same) == ()


def test_a_trace_that_is_nearly_all_attended_is_warned_of() -> None:
    """4,112 of 4,160 tokens attended say little about a context of 16K; 2,064 of 12K say enough."""
    trace = load_trace("smollm2-prose")
    base = load_scheme("oasis")
    run = scenario(with_options(base, budget_tokens=4_096), workload=closed_loop(2, 16_384, 40))
    lines = trace_notes(replace(run, traces=(trace,)))
    assert lines[1].startswith("WARNING: a head attends 99 % of the trace smollm2-prose and 25 %")
    plain = replace(run, scheme=base, traces=(load_trace("aime.jsonl"),))
    assert not any("WARNING" in line for line in trace_notes(plain))
