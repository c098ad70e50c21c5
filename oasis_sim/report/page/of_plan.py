"""The report of a plan: what to take, what else would do, what it hangs on, where offload pays.

Everything is read from the plan's JSON (`plan --format json`), so a kept plan gives the same page.
"""

from __future__ import annotations

from collections.abc import Sequence

from oasis_sim.report.numbers import count, counted, milliseconds
from oasis_sim.report.page.document import (
    Axis,
    Bar,
    Bars,
    Figure,
    Report,
    Section,
    Table,
    whole,
    words,
)
from oasis_sim.report.page.machine_figures import link_figure, memory_figures, timeline_figure
from oasis_sim.report.page.plan_fleets import (
    GPUS,
    Document,
    fleets_section,
    layout_of,
    name_of,
    nodes_of,
)
from oasis_sim.report.page.speed_figures import Operated, figures_over, pareto_figure
from oasis_sim.report.page.tables import capacities, leaves, versions

MOST_CASES = 8
CONCURRENCY = Axis("requests at once", log=True)


def plan_report(plan: Document) -> Report:
    """Return the report of a plan's JSON."""
    fleets, evidence = plan["fleets"], plan["evidence"]
    speed = [] if evidence is None else [_speed(plan, evidence), _link_and_step(fleets, evidence)]
    memory = [_memory(fleets)] if fleets else []
    return Report(
        title=_title(plan),
        answer=_answer(plan),
        cautions=tuple(plan["notes"]),
        sections=(
            fleets_section(plan),
            *speed,
            *memory,
            *([_hangs_on(plan)] if plan["sensitivity"] else []),
            Section("How the answer was found", tables=(_sentences(plan),)),
            _inputs(plan),
        ),
        version=versions(plan),
    )


def _title(plan: Document) -> str:
    models = {fleet["replica"]["scenario"]["model"] for fleet in plan["fleets"]}
    inputs = plan["inputs"]
    load = inputs["workload"] if "workload" in inputs else f"{inputs['rate']} requests/s"
    return f"Plan: {', '.join([*sorted(models), load])}"


def _offloads(fleet: Document) -> bool:
    return bool(fleet["replica"]["scenario"]["offload"])


def _answer(plan: Document) -> str:
    fleets, currency = plan["fleets"], plan["currency"]
    if not fleets:
        return "No fleet meets the targets; what is missing is listed below."
    best = fleets[0]
    targets = ", ".join(
        f"{each['name']} {milliseconds(each['value_ms'])} of {milliseconds(each['limit_ms'])}"
        for each in best["targets"]
    )
    return (
        f"Take {counted(best['gpus'], 'GPU')} {best['profile']} with {best['scheme']} "
        f"({layout_of(best)}{_cost(best, currency)}): "
        f"{targets}; {_compared(fleets, currency)}."
    )


def _cost(fleet: Document, currency: str | None) -> str:
    cost = fleet["cost_per_million_output_tokens"]
    return "" if cost is None else f", {cost:.2f} {currency} per million output tokens"


def _compared(fleets: Sequence[Document], currency: str | None) -> str:
    """Say what moving KV out of HBM changes: the best fleet against the best of the other kind."""
    best = fleets[0]
    others = [fleet for fleet in fleets if _offloads(fleet) != _offloads(best)]
    kinds = ("KV in host memory", "all KV in HBM")
    other_kind = kinds[1] if _offloads(best) else kinds[0]
    if not others:
        return f"no fleet with {other_kind} was found"
    other = others[0]
    return (
        f"with {other_kind} the best is {counted(other['gpus'], 'GPU')} {other['profile']} with "
        f"{other['scheme']}{_cost(other, currency)}"
    )


def _speed(plan: Document, evidence: Document) -> Section:
    series = [
        Operated(
            curve["scheme"],
            {at["concurrency"]: at for at in curve["points"] if at["refusal"] is None},
        )
        for curve in evidence["curves"]
    ]
    best = plan["fleets"][0]
    refused = [
        f"{curve['scheme']} from {at['concurrency']} requests at once on: {at['refusal']}"
        for curve in evidence["curves"]
        for at in [each for each in curve["points"] if each["refusal"] is not None][:1]
    ]
    node = "replica" if nodes_of(best) is None else "node that prefills and decodes"
    paragraph = (
        f"{best['profile']}, {counted(best['tp'], 'GPU')} per {node}. All requests wait from the "
        "start, so many at once, twice as many in all, each with "
        f"{count(evidence['context_tokens'])} prompt tokens and "
        f"{count(evidence['output_tokens'])} to generate (the means of the load)."
    )
    pays = Table(
        "where_offload_pays",
        "Where offloading pays",
        ("scheme", "faster than dense at (requests at once)"),
        tuple(
            (words(each["scheme"]), words(", ".join(map(str, each["ahead_at"])) or "none"))
            for each in plan["where_offload_pays"]
        ),
    )
    return Section(
        "Speed by scheme on the recommended card",
        (paragraph, *refused),
        figures=(
            pareto_figure(series, CONCURRENCY.title),
            *figures_over(series, CONCURRENCY, _tpot_limit(best)),
        ),
        tables=(pays,) if pays.rows else (),
    )


def _tpot_limit(fleet: Document) -> tuple[float, str] | None:
    """Return the target of TPOT, if there is one, with its name."""
    for each in fleet["targets"]:
        if each["name"].startswith("tpot"):
            return each["limit_ms"], f"target of {each['name']}: {milliseconds(each['limit_ms'])}"
    return None


def _link_and_step(fleets: Sequence[Document], evidence: Document) -> Section:
    figures, ratios = [], evidence["fetch_ratios"]
    node = "replica" if nodes_of(fleets[0]) is None else "node that prefills and decodes"
    card = f"{fleets[0]['profile']}, {counted(fleets[0]['tp'], 'GPU')} per {node}"
    if ratios is not None:
        points = {each["fetch_ratio"]: each for each in ratios["points"] if each["refusal"] is None}
        where = f"{ratios['scheme']} on {card}, {ratios['concurrency']} requests at once"
        figures += [link_figure(points, where)] if points else []
    figures += [
        timeline_figure(
            window,
            f"{window['scheme']} on {fleets[0]['profile']} under its load",
            f"step_timeline_{number}",
        )
        for number, window in enumerate(evidence["step_timelines"], 1)
    ]
    return Section("PCIe and the step", figures=tuple(figures))


def _memory(fleets: Sequence[Document]) -> Section:
    cases = [(name_of(each), each["replica"]) for each in fleets]
    shown = cases[:MOST_CASES]
    left = () if len(cases) <= MOST_CASES else (f"The first {MOST_CASES} fleets are drawn.",)
    return Section(
        "Memory by tier", left, figures=memory_figures(shown), tables=(capacities(cases),)
    )


def _hangs_on(plan: Document) -> Section:
    best = plan["fleets"][0]
    bars = [Bar("as asked", (best["gpus"],), counted(best["gpus"], "GPU"))]
    rows = [(words("as asked"), whole(best["gpus"]), words(name_of(best)))]
    for each in plan["sensitivity"]:
        gpus = each["gpus"]
        text = "not found" if gpus is None else counted(gpus, "GPU")
        bars.append(Bar(f"with {each['title']}", (gpus or 0,), text))
        rows.append((words(f"with {each['title']}"), whole(gpus), words(each["sentence"])))
    figure = Figure(
        "GPUs needed when one thing changes",
        f"The recommended fleet ({name_of(best)}) asked again: "
        + "; ".join(each["sentence"] for each in plan["sensitivity"])
        + ".",
        Bars(GPUS, ("GPUs",), tuple(bars)),
        Table("sensitivity", "Sensitivity", ("change", "GPUs", "in words"), tuple(rows)),
    )
    return Section("What the answer hangs on", figures=(figure,))


def _sentences(plan: Document) -> Table:
    rows = tuple((whole(index), words(text)) for index, text in enumerate(plan["sentences"], 1))
    return Table("sentences", "In words", ("number", "sentence"), rows)


def _inputs(plan: Document) -> Section:
    tables = [leaves("inputs", "Options as given, and their defaults", plan["inputs"])]
    if plan["fleets"]:
        scenario = plan["fleets"][0]["replica"]["scenario"]
        which = "One replica" if nodes_of(plan["fleets"][0]) is None else "All nodes"
        tables.append(leaves("scenario", f"{which} of the recommended fleet", scenario))
    tables.append(leaves("fingerprints", "SHA-256 of the inputs' content", plan["fingerprints"]))
    return Section(
        "Inputs and how to repeat this",
        (f"Versions: {versions(plan)}.",),
        (f"{plan['command']} --report report.html",),
        tables=tuple(tables),
    )
