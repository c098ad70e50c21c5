"""The report of a run: its result in one sentence, where time and memory go, what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oasis_sim.report.numbers import counted, number, rate
from oasis_sim.report.operating import operating_point
from oasis_sim.report.page.document import Report, Section, Table, Text, amount, words
from oasis_sim.report.page.machine_figures import memory_figures, stages_figure, timeline_figure
from oasis_sim.report.page.tables import capacities, leaves, versions, view_tables
from oasis_sim.report.row import Summary
from oasis_sim.report.step_window import step_window
from oasis_sim.report.view import view_of
from oasis_sim.report.why import limits_of

COMMAND = "oasis-sim run --config config.yaml --out run && oasis-sim report run --out report.html"


def run_report(summary: Summary, config: str, timeline: Mapping[str, Any] | None) -> Report:
    """Return the report of `summary.json`, with the run's config.yaml and timeline.json."""
    scenario, view = summary["scenario"], view_of(summary)
    name = f"{scenario['scheme']} on {scenario['model']}, {_machine(summary)}"
    window = None if timeline is None else step_window(timeline)
    figures = [stages_figure(summary)]
    figures += [] if window is None else [timeline_figure(window, name)]
    cases = [(name, summary)]
    return Report(
        title=f"Run: {name}",
        answer=_answer(name, summary),
        cautions=tuple(text for text in (view.warning, *view.notes) if text),
        sections=(
            Section("Result", (view.heading,), tables=(_offered(summary), *view_tables(view))),
            Section("Where the time goes", figures=tuple(figures)),
            Section("Memory by tier", figures=memory_figures(cases), tables=(capacities(cases),)),
            Section(
                "Inputs and how to repeat this",
                (f"Versions: {versions(summary)}. With the config.yaml below:",),
                (COMMAND,),
                tables=(leaves("inputs", "The scenario", scenario),),
                texts=(Text("config.yaml", "config.yaml, the scenario in full", config),),
            ),
            Section("Every number", tables=(leaves("summary", "summary.json", summary),)),
        ),
        version=versions(summary),
    )


def _machine(summary: Summary) -> str:
    """Return all GPUs, and the nodes that they make up where prefill and decode are apart."""
    scenario, nodes = summary["scenario"], summary.get("disaggregation")
    if nodes is None:
        return f"{scenario['tp']} x {scenario['profile']}"
    prefill, decode = nodes["prefill_nodes"], nodes["decode_nodes"]
    gpus = (prefill + decode) * scenario["tp"]
    return (
        f"{gpus} x {scenario['profile']} ({counted(prefill, 'prefill node')} and "
        f"{counted(decode, 'decode node')} of tp {scenario['tp']})"
    )


def _answer(name: str, summary: Summary) -> str:
    point, limits = operating_point(summary), limits_of(summary)
    return (
        f"{name}: {rate(point['output_tokens_per_s_per_gpu'], 'output tokens/s')} per GPU and "
        f"{rate(point['output_tokens_per_s_per_user'], 'tokens/s')} per user (mean TPOT "
        f"{rate(point['tpot_ms_mean'], 'ms')}), with {number(point['running_batch_mean'])} "
        f"requests at a time; {limits['time_why']}; batch: {limits['batch_why']}."
    )


def _offered(summary: Summary) -> Table:
    rows = tuple((words(key), amount(value)) for key, value in operating_point(summary).items())
    return Table("operating_point", "What it offers", ("number, with its unit", "value"), rows)
