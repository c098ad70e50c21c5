"""Whether a trace can stand for a run: refused when it says nothing, told when it differs."""

from __future__ import annotations

from collections.abc import Sequence

from oasis_sim.engine.scenario import Scenario
from oasis_sim.errors import InputError
from oasis_sim.scheme import Scheme
from oasis_sim.trace import AttentionTrace

MOST_ATTENDED = 0.5
APART = 1.5
"""A trace of which more than half is attended, while the run attends a share this much smaller."""


def check_traces(traces: Sequence[AttentionTrace], scheme: Scheme, longest: int) -> None:
    """Refuse a trace that is too short for a selection: all its blocks fit into the budget.

    From such a trace nothing is ever missing and nothing lost, whatever the run's context. Where
    no request grows beyond the budget (`longest` tokens at most) any trace will do.

    Raises InputError.
    """
    if not scheme.selects or longest <= scheme.attended_tokens_max:
        return
    for trace in traces:
        blocks = (int(trace.position[-1]) + 1) // scheme.block_tokens
        if blocks > scheme.chosen_blocks + scheme.reserved_blocks:
            continue
        raise InputError(
            f"the trace ends at {int(trace.position[-1]) + 1:,} tokens, {blocks:,} blocks of "
            f"{scheme.block_tokens}, which all fit into the {scheme.attended_tokens_max:,} tokens "
            f"that a head attends: it cannot say what a selection misses",
            file=trace.name,
            field="position",
            fix="use a trace of a longer context, or a smaller budget (--budget)",
        )


def longest_request(scenario: Scenario) -> int:
    """Return the most tokens that a request of a run has in the end."""
    workload = scenario.workload
    return int((workload.prompt_tokens + workload.output_tokens).max())


def trace_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return lines on traces of another model, context, or number of layers or KV heads."""
    return tuple(
        text
        for trace in scenario.traces
        for text in (_difference(trace, scenario), _understated(trace, scenario))
        if text
    )


def _understated(trace: AttentionTrace, scenario: Scenario) -> str:
    """Warn where a head attends most of the trace, but a small part of the run's contexts."""
    attended, last = scenario.scheme.attended_tokens_max, int(trace.position[-1]) + 1
    share, of_run = attended / last, attended / longest_request(scenario)
    if share <= MOST_ATTENDED or share < APART * of_run:
        return ""
    return (
        f"WARNING: a head attends {100 * share:.0f} % of the trace {trace.name} and "
        f"{100 * of_run:.0f} % of this run's longest context: misses, traffic and lost mass are "
        "understated; use a trace of a longer context"
    )


def _difference(trace: AttentionTrace, scenario: Scenario) -> str:
    model, workload = scenario.model, scenario.workload
    source = str(trace.meta["model"]["name"])
    first, last = int(trace.position[0]) + 1, int(trace.position[-1]) + 1
    shortest, longest = int(workload.prompt_tokens.min()), longest_request(scenario)
    same_model = source.lower() == model.name.lower()
    same_shape = (trace.layers, trace.kv_heads) == (model.layers, model.kv_heads)
    if same_model and same_shape and first <= shortest and longest <= last:
        return ""
    return (
        f"trace {trace.name} stands for another case: {source}, "
        f"{len(trace.full_layers):,} full-attention layers of {trace.model_layers:,}, "
        f"{trace.kv_heads:,} KV heads, {first:,} to {last:,} tokens; "
        f"the run: {model.name}, {model.layers:,} layers, {model.kv_heads:,} KV heads, "
        f"{shortest:,} to {longest:,} tokens"
    )
