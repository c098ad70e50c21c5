"""Figures of speed: tokens per second of a user against those of a GPU, and over an option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oasis_sim.report.numbers import number
from oasis_sim.report.operating import Operating, front
from oasis_sim.report.page.document import (
    Axis,
    Curves,
    Figure,
    Line,
    Point,
    Table,
    amount,
    words,
)

USER, GPU = "output_tokens_per_s_per_user", "output_tokens_per_s_per_gpu"
USER_AXIS, GPU_AXIS = Axis("tokens/s per user (1 / mean TPOT)"), Axis("output tokens/s per GPU")


@dataclass(frozen=True)
class Operated:
    """Hold the points of one line: by the value of the option that changes along it."""

    name: str
    points: Mapping[float, Operating]


def pareto_figure(series: Sequence[Operated], option: str) -> Figure:
    """Draw every point by what a user and what a GPU gets; ring those that none beats in both."""
    known = [
        (each.name, at, point)
        for each in series
        for at, point in each.points.items()
        if point[USER] is not None and point[GPU] is not None
    ]
    best = front([(point[USER], point[GPU]) for _, _, point in known])
    lines = tuple(
        Line(
            each.name,
            tuple(
                Point(point[USER], point[GPU], f"{option} {number(at)}")
                for name, at, point in known
                if name == each.name
            ),
        )
        for each in series
    )
    ringed = tuple(Point(known[index][2][USER], known[index][2][GPU]) for index in best)
    rows = tuple(
        (
            words(f"{name}, {option} {number(at)}"),
            words(name),
            amount(at),
            amount(point[USER]),
            amount(point[GPU]),
            words("yes" if index in best else "no"),
        )
        for index, (name, at, point) in enumerate(known)
    )
    header = ("point", "line", option, USER_AXIS.title, GPU_AXIS.title, "on the Pareto front")
    return Figure(
        "What a user gets against what a GPU gives",
        _pareto_words(known, best, option),
        Curves(USER_AXIS, GPU_AXIS, lines, ringed),
        Table("pareto", "Tokens per second of a user and of a GPU", header, rows),
    )


def _pareto_words(
    known: Sequence[tuple[str, float, Operating]], best: Sequence[int], option: str
) -> str:
    if not best:
        return "Nothing was simulated."
    names = list(dict.fromkeys(known[index][0] for index in best))
    slow, fast = known[best[0]], known[best[-1]]
    return (
        f"Ringed: the Pareto front, {len(best)} of {len(known)} points, of {', '.join(names)}. "
        f"It goes from {_at(slow, option)} to {_at(fast, option)}. Up and to the right is better."
    )


def _at(item: tuple[str, float, Operating], option: str) -> str:
    name, at, point = item
    return (
        f"{number(point[GPU])} tokens/s per GPU at {number(point[USER])} per user "
        f"({name}, {option} {number(at)})"
    )


def over_option(
    series: Sequence[Operated], option: Axis, key: str, y: Axis, limit: tuple[float, str] | None
) -> Figure:
    """Draw one number of each line over the option that changes along it."""
    lines = tuple(
        Line(
            each.name,
            tuple(
                Point(at, point[key], f"{option.title} {number(at)}: {number(point[key])}")
                for at, point in each.points.items()
                if point[key] is not None
            ),
        )
        for each in series
    )
    level, name = limit or (None, "")
    places = sorted({at for each in series for at in each.points})
    rows = tuple(
        (amount(at), *(amount(each.points.get(at, {}).get(key)) for each in series))
        for at in places
    )
    title = f"{y.title} over {option.title}"
    header = (option.title, *(f"{each.name}: {y.title}" for each in series))
    return Figure(
        title[:1].upper() + title[1:],
        _over_words(lines, option, y),
        Curves(option, y, lines, limit=level, limit_name=name),
        Table(key, title, header, rows),
    )


def _over_words(lines: Sequence[Line], option: Axis, y: Axis) -> str:
    parts = [
        f"{line.name} from {number(line.points[0].y)} to {number(line.points[-1].y)}"
        for line in lines
        if line.points
    ]
    told = f"{y.title}, from the least to the largest {option.title}: {'; '.join(parts)}."
    return told[:1].upper() + told[1:]


def figures_over(
    series: Sequence[Operated], option: Axis, limit: tuple[float, str] | None = None
) -> tuple[Figure, ...]:
    """Return throughput and TPOT over an option; `limit` is a target of the p99 TPOT in ms."""
    return (
        over_option(series, option, GPU, GPU_AXIS, None),
        over_option(series, option, "tpot_ms_mean", Axis("mean TPOT (ms)"), limit),
    )
