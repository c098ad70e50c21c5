"""Whether a trace can stand for a run: refused when it says nothing, told when it differs."""

from __future__ import annotations

from oasis_sim.engine.scenario import Scenario
from oasis_sim.errors import InputError
from oasis_sim.trace import AttentionTrace


def check_traces(scenario: Scenario) -> None:
    """Refuse a trace that is too short for a selection: all its blocks fit into the budget.

    From such a trace nothing is ever missing and nothing lost, whatever the run's context. Where
    no request of the run grows beyond the budget nothing is selected, and any trace will do.

    Raises InputError.
    """
    scheme = scenario.scheme
    if not scheme.selects or _longest(scenario) <= scheme.attended_tokens_max:
        return
    for trace in scenario.traces:
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


def _longest(scenario: Scenario) -> int:
    workload = scenario.workload
    return int((workload.prompt_tokens + workload.output_tokens).max())


def trace_notes(scenario: Scenario) -> tuple[str, ...]:
    """Return a line per trace of another model, context, or number of layers or KV heads."""
    return tuple(
        text for text in (_difference(trace, scenario) for trace in scenario.traces) if text
    )


def _difference(trace: AttentionTrace, scenario: Scenario) -> str:
    model, workload = scenario.model, scenario.workload
    source = str(trace.meta["model"]["name"])
    first, last = int(trace.position[0]) + 1, int(trace.position[-1]) + 1
    shortest, longest = int(workload.prompt_tokens.min()), _longest(scenario)
    same_model = source.lower() == model.name.lower()
    same_shape = (trace.layers, trace.kv_heads) == (model.layers, model.kv_heads)
    if same_model and same_shape and first <= shortest and longest <= last:
        return ""
    return (
        f"trace {trace.name} stands for another case: {source}, {trace.layers:,} of "
        f"{trace.model_layers:,} layers, {trace.kv_heads:,} KV heads, {first:,} to {last:,} "
        f"tokens; the run: {model.name}, {model.layers:,} layers, {model.kv_heads:,} KV heads, "
        f"{shortest:,} to {longest:,} tokens"
    )
