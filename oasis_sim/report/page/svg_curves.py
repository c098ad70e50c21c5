"""Draw lines over two axes: each with a marker and a dash of its own, and its name at its end."""

from __future__ import annotations

from collections.abc import Sequence

from oasis_sim.report.page.document import Curves, Line
from oasis_sim.report.page.markup import Markup, element, join
from oasis_sim.report.page.scales import Scale, scale
from oasis_sim.report.page.svg_parts import (
    DASHES,
    LINE_PX,
    SERIES,
    WIDTH,
    drawing,
    frame,
    label,
    marker,
    shortened,
    width_of,
)

LEFT, TOP, BOTTOM = 52.0, 30.0, 44.0
HEIGHT = 320.0
KEY_PX = 26.0
RING_PX = 8.0


def draw_curves(curves: Curves, words: str) -> Markup:
    """Return the drawing; lines without points are left out."""
    points = [point for line in curves.lines for point in line.points]
    names = [shortened(line.name) for line in curves.lines if line.points]
    right = WIDTH - KEY_PX - max(map(width_of, names), default=0.0)
    across = scale([point.x for point in points], LEFT, right, log=curves.x.log)
    heights = [point.y for point in points] + ([] if curves.limit is None else [curves.limit])
    up = scale(heights, HEIGHT - BOTTOM, TOP, log=curves.y.log)
    parts = [frame(across, up, curves.x, curves.y), _limit(curves, across, up)]
    parts += [_ring(across.at(point.x), up.at(point.y)) for point in curves.front]
    drawn = [(index, line) for index, line in enumerate(curves.lines) if line.points]
    parts += [_line(index, line, across, up) for index, line in drawn]
    parts.append(_names(drawn, across, up))
    return drawing(HEIGHT, words, *parts)


def _limit(curves: Curves, across: Scale, up: Scale) -> Markup:
    if curves.limit is None:
        return Markup()
    place = up.at(curves.limit)
    return join(
        element("path", d=f"M{across.start:.1f},{place:.1f}H{across.end:.1f}", class_="limit"),
        label(across.start + 4, place - 5, curves.limit_name),
    )


def _ring(x: float, y: float) -> Markup:
    return element("circle", cx=x, cy=y, r=RING_PX, class_="ring")


def _line(index: int, line: Line, across: Scale, up: Scale) -> Markup:
    places = [(across.at(point.x), up.at(point.y)) for point in line.points]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    stroke = element(
        "path",
        d=path,
        class_=f"line s{index % SERIES}",
        stroke_dasharray=DASHES[index % SERIES],
    )
    marks = [
        marker(index, x, y, f"{line.name}, {point.label}" if point.label else line.name)
        for (x, y), point in zip(places, line.points, strict=True)
    ]
    return join(stroke, *marks)


def _names(drawn: Sequence[tuple[int, Line]], across: Scale, up: Scale) -> Markup:
    """Return the names beside the right ends of their lines, moved apart, each with its marker."""
    ends = sorted(
        (up.at(end.y), across.at(end.x), index, line.name)
        for index, line in drawn
        for end in [max(line.points, key=lambda point: point.x)]
    )
    heights = _apart([end[0] for end in ends])
    left = across.end + 12
    parts = []
    for height, (y, x, index, name) in zip(heights, ends, strict=True):
        lead = f"M{x:.1f},{y:.1f}L{left - 2:.1f},{height:.1f}"
        parts.append(element("path", d=lead, class_="lead"))
        parts.append(marker(index, left + 3, height))
        parts.append(label(left + 11, height + 4, shortened(name)))
    return join(*parts)


def _apart(heights: Sequence[float]) -> list[float]:
    """Return ascending heights that are a line of text apart, as near to the given as it goes."""
    low, high = TOP, HEIGHT - BOTTOM
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + LINE_PX if placed else low))
    for index in range(len(placed) - 1, -1, -1):
        below = placed[index + 1] - LINE_PX if index + 1 < len(placed) else high
        placed[index] = min(placed[index], below)
    return placed
