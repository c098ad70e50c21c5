"""The report of a sweep: its best points, the Pareto front, what each option does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from oasis_sim.report.numbers import NOTHING, number, rate
from oasis_sim.report.operating import Operating, front, operating_point
from oasis_sim.report.page.document import (
    Axis,
    Bar,
    Bars,
    Cell,
    Curves,
    Figure,
    Report,
    Section,
    Table,
    Text,
    amount,
    whole,
    words,
)
from oasis_sim.report.page.machine_figures import link_figure, memory_figures
from oasis_sim.report.page.speed_figures import (
    GPU,
    GPU_AXIS,
    USER,
    Operated,
    figures_over,
    pareto_figure,
)
from oasis_sim.report.page.tables import capacities, leaves, versions
from oasis_sim.report.row import Summary
from oasis_sim.report.view import view_of

MOST_LINES = 8
RATIO = "fetch_ratio"
COMMAND = "oasis-sim sweep sweep.yaml --out sweep && oasis-sim report sweep --out report.html"
COLUMNS = {
    GPU: "output tokens/s per GPU",
    USER: "tokens/s per user",
    "tpot_ms_mean": "mean TPOT (ms)",
    "tpot_ms_p99": "p99 TPOT (ms)",
    "ttft_ms_mean": "mean TTFT (ms)",
    "running_batch_mean": "running batch (requests)",
}


@dataclass(frozen=True)
class SweepPoint:
    """Hold one point: its options as texts, and its summary or why there is none."""

    labels: Mapping[str, str | None]
    summary: Summary | None
    status: str

    @property
    def name(self) -> str:
        """Return the varied options in words."""
        return in_words(self.labels, self.labels)

    @property
    def offers(self) -> Operating:
        """Return the operating point of a point that was simulated."""
        assert self.summary is not None
        return operating_point(self.summary)


def in_words(labels: Mapping[str, str | None], options: Iterable[str]) -> str:
    """Return some options with their values; those that mean nothing to the point are left out."""
    return ", ".join(f"{key} {labels[key]}" for key in options if labels[key])


def sweep_report(points: Sequence[SweepPoint], grid: str) -> Report:
    """Return the report of a sweep; `grid` is the text of its sweep.yaml."""
    done = [each for each in points if each.summary is not None and each.offers[USER] is not None]
    sections = [Section("All points", tables=(_table(points),))]
    if done:
        best = max(done, key=lambda each: each.offers[GPU])
        sections = [*_figures(done, best), *sections, _memory(done, best)]
    texts = (Text("sweep.yaml", "sweep.yaml, the grid", grid),)
    summary = next((each.summary for each in done), None)
    version = "oasis-sim" if summary is None else versions(summary)
    inputs = (
        ()
        if summary is None
        else (leaves("inputs", "The scenario of the first point", summary["scenario"]),)
    )
    sections.append(
        Section(
            "Inputs and how to repeat this",
            (f"Versions: {version}. With the sweep.yaml below:",),
            (COMMAND,),
            tables=inputs,
            texts=texts,
        )
    )
    return Report(
        title=f"Sweep over {', '.join(points[0].labels) if points else 'nothing'}",
        answer=_answer(points, done),
        cautions=_cautions(points, done),
        sections=tuple(sections),
        version=version,
    )


def _answer(points: Sequence[SweepPoint], done: Sequence[SweepPoint]) -> str:
    refused = sum(each.status == "refused" for each in points)
    counted = (
        f"Of {len(points)} scenarios {refused} do not fit"
        if refused
        else (f"Of {len(points)} scenarios")
    )
    if not done:
        return f"{counted}; none has a result."
    best = max(done, key=lambda each: each.offers[GPU])
    fast = max(done, key=lambda each: each.offers[USER])
    return (
        f"{counted}, a GPU gives most with {best.name}: {_speeds(best)}; "
        f"a user gets most with {fast.name}: {_speeds(fast)}."
    )


def _speeds(point: SweepPoint) -> str:
    offers = point.offers
    return (
        f"{rate(offers[GPU], 'output tokens/s')} per GPU at "
        f"{rate(offers[USER], 'tokens/s')} per user"
    )


def _cautions(points: Sequence[SweepPoint], done: Sequence[SweepPoint]) -> tuple[str, ...]:
    missing = sum(each.status == "missing" for each in points)
    found = (
        [f"PARTIAL: {missing} of {len(points)} points are not simulated yet."] if missing else []
    )
    for each in done:
        assert each.summary is not None
        found += [text for text in (view_of(each.summary).warning,) if text]
    return tuple(dict.fromkeys(found))


def along(points: Sequence[SweepPoint]) -> str | None:
    """Return the option that lines run along: concurrency, or the numeric one of most values."""
    numeric = {}
    for option in points[0].labels:
        texts = {each.labels[option] for each in points}
        if len(texts) > 1 and all(text is None or _value(text) is not None for text in texts):
            numeric[option] = len(texts)
    if "concurrency" in numeric:
        return "concurrency"
    return max(numeric, key=lambda option: numeric[option], default=None)


def _value(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def series_along(points: Sequence[SweepPoint], option: str) -> list[Operated]:
    """Return a line for each combination of the other options, named by their values."""
    lines: dict[str, dict[float, Operating]] = {}
    for each in points:
        at = _value(each.labels[option])
        rest = [text for key, text in each.labels.items() if key != option and text]
        if at is not None:
            lines.setdefault(", ".join(rest) or "all", {})[at] = each.offers
    return [Operated(name, dict(sorted(at.items()))) for name, at in lines.items()]


def fastest(series: Sequence[Operated]) -> list[Operated]:
    """Return as many lines as can be told apart: those that reach the most tokens/s of a GPU."""
    ranked = sorted(series, key=lambda line: -max(point[GPU] for point in line.points.values()))
    kept = ranked[:MOST_LINES]
    return [line for line in series if line in kept]


def pareto_of(points: Sequence[SweepPoint]) -> Curves | None:
    """Return tokens per second of a GPU over those of a user, None where no number is varied."""
    done = [each for each in points if each.summary is not None and each.offers[USER] is not None]
    option = along(done) if done else None
    if option is None:
        return None
    drawing = pareto_figure(fastest(series_along(done, option)), option).drawing
    return drawing if isinstance(drawing, Curves) else None


def _figures(done: Sequence[SweepPoint], best: SweepPoint) -> list[Section]:
    option = along(done)
    figures: list[Figure] = []
    paragraphs: list[str] = []
    if option is not None:
        every = series_along(done, option)
        series = fastest(every)
        axis = Axis(option.replace("_", " "), log=all(min(line.points) > 0 for line in series))
        figures = [pareto_figure(series, axis.title), *figures_over(series, axis)]
        others = [key for key in best.labels if key != option]
        if others:
            paragraphs.append(f"Lines are named by {', '.join(others)}.")
        if len(every) > len(series):
            paragraphs.append(f"{len(series)} of {len(every)} are drawn, the fastest per GPU.")
    ratios = _ratios(done, best)
    if len(ratios) > 1:
        about = in_words(best.labels, [key for key in best.labels if key != RATIO])
        figures.append(link_figure(ratios, about or "the scenario"))
    return [
        Section("Speed", tuple(paragraphs), figures=tuple(figures)),
        Section("What the best point hangs on", figures=(_one_at_a_time(done, best),)),
    ]


def _ratios(done: Sequence[SweepPoint], best: SweepPoint) -> dict[float, Operating]:
    """Return the points that differ from the best one in nothing but the fetch ratio."""
    if RATIO not in best.labels:
        return {}
    found = {}
    for each in done:
        at = _value(each.labels[RATIO])
        if at and all(each.labels[key] == best.labels[key] for key in best.labels if key != RATIO):
            found[at] = each.offers
    return dict(sorted(found.items()))


def _one_at_a_time(done: Sequence[SweepPoint], best: SweepPoint) -> Figure:
    """Draw the points that differ from the best one in one option."""
    near = [best]
    for option in best.labels:
        near += [
            each
            for each in done
            if [key for key in best.labels if each.labels[key] != best.labels[key]] == [option]
        ]
    bars, rows = [], []
    for each in near:
        changed = [key for key in best.labels if each.labels[key] != best.labels[key]]
        name = ", ".join(f"{key} {each.labels[key] or NOTHING}" for key in changed) or "the best"
        value = each.offers[GPU]
        ratio = value / best.offers[GPU]
        bars.append(Bar(name, (value,), f"{number(value)} ({ratio:.2f}x)"))
        rows.append((words(name), amount(value), amount(ratio, lambda each: f"{each:.2f}")))
    header = ("changed", GPU_AXIS.title, "over the best")
    return Figure(
        "One option changed at a time",
        f"Output tokens/s per GPU around the best point ({best.name}).",
        Bars(GPU_AXIS, ("rate",), tuple(bars)),
        Table("one_at_a_time", "One option changed at a time", header, tuple(rows)),
    )


def _memory(done: Sequence[SweepPoint], best: SweepPoint) -> Section:
    """Return memory of the points of the Pareto front, fastest per GPU first.

    Points are named by the options in which they differ; what they share is said above.
    """
    indices = front([(each.offers[USER], each.offers[GPU]) for each in done])[:MOST_LINES]
    chosen = [done[index] for index in indices]
    differ = [key for key in best.labels if len({each.labels[key] for each in chosen}) > 1]
    shared = in_words(best.labels, [key for key in best.labels if key not in differ])
    known = [
        (in_words(each.labels, differ) or each.name, each.summary)
        for each in chosen
        if each.summary is not None
    ]
    return Section(
        "Memory by tier",
        (f"Points of the Pareto front{f', all with {shared}' if shared else ''}.",),
        figures=memory_figures(known),
        tables=(capacities(known),),
    )


def _table(points: Sequence[SweepPoint]) -> Table:
    axes = list(points[0].labels) if points else []
    rows = []
    for place, each in enumerate(points, start=1):
        offers = each.offers if each.summary is not None else {}
        cells: list[Cell] = [whole(place), *map(words, each.labels.values())]
        cells += [amount(offers.get(key)) for key in COLUMNS]
        rows.append((*cells, words(each.status)))
    header = ("point", *axes, *COLUMNS.values(), "status")
    return Table("points", "Every point of the sweep", header, tuple(rows))
