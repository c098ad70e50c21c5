"""What the drawings share: size, marks and fills that differ without colour, and the frame.

Colours are classes (`s0`, `s1`, ...) that the page's style sheet sets for light, dark and print.
"""

from __future__ import annotations

from collections.abc import Sequence

from oasis_sim.report.page.document import Axis
from oasis_sim.report.page.markup import Markup, element, join
from oasis_sim.report.page.scales import Scale, tick

WIDTH = 480.0
CHARACTER_PX = 8.6
LINE_PX = 17.0
KEY_ROW_PX = 20.0
SERIES = 8
DASHES = (None, "7 4", "2 3", "10 3 2 3", "12 4", "5 2 1 2", "3 6", "1 4")
LONGEST_LABEL = 20


def drawing(height: float, words: str, *children: Markup) -> Markup:
    """Return the SVG element; readers of screens get the words in place of the picture."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=words,
        focusable="false",
    )


def label(
    x: float, y: float, content: str, *, anchor: str | None = None, quiet: bool = False
) -> Markup:
    """Return a text whose baseline begins (or ends, or is centred) at a place."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_="quiet" if quiet else None)


def shortened(content: str, most: int = LONGEST_LABEL) -> str:
    """Return a name that has room in a drawing; the table beside it has all of it."""
    return content if len(content) <= most else content[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def width_of(content: str) -> float:
    """Return about how wide a text is drawn."""
    return CHARACTER_PX * len(content)


def marker(series: int, x: float, y: float, title: str | None = None, size: float = 4.0) -> Markup:
    """Return the marker of a series; each has a shape of its own."""
    shape = _outline(series % SERIES, x, y, size)
    tip = None if title is None else element("title", title)
    return element("path", tip, d=shape, class_=f"mark s{series % SERIES}")


def _outline(shape: int, x: float, y: float, r: float) -> str:
    """Return the path of a shape around a place."""
    if shape == 0:
        return _path(f"M{x - r:.1f},{y:.1f}a{r:g},{r:g} 0 1,0 {2 * r:g},0a{r:g},{r:g} 0 1,0 ", r)
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
        3: ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
        4: ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
        5: ((-1.4, -0.45), (1.4, -0.45), (1.4, 0.45), (-1.4, 0.45)),
        6: ((-0.45, -1.4), (0.45, -1.4), (0.45, 1.4), (-0.45, 1.4)),
        7: ((-1.2, -1.2), (0, -0.5), (1.2, -1.2), (0.5, 0), (1.2, 1.2), (0, 0.5), (-1.2, 1.2)),
    }[shape]
    return "M" + "L".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in corners) + "Z"


def _path(start: str, r: float) -> str:
    return f"{start}{-2 * r:g},0Z"


def fill(index: int | None) -> str:
    """Return the fill of a part of a bar, defined once by `fills`; None is hollow."""
    return "none" if index is None else f"url(#fill{index % SERIES})"


def fills() -> Markup:
    """Return the fills of bars: solid, and hatchings that differ without colour."""
    hatchings = (
        None,
        "M-2,2l4,-4M0,8l8,-8M6,10l4,-4",
        "M0,4h8",
        "M4,0v8",
        "M-2,6l4,4M0,0l8,8M6,-2l4,4",
        "M0,4h8M4,0v8",
        "M2,2h2M6,6h2",
        "M0,2h8M0,6h8",
    )
    patterns = [
        element(
            "pattern",
            element("rect", width=8, height=8, class_=f"s{index}"),
            None if lines is None else element("path", d=lines, class_="hatch"),
            id=f"fill{index}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for index, lines in enumerate(hatchings)
    ]
    return element(
        "svg",
        element("defs", *patterns),
        width=0,
        height=0,
        aria_hidden="true",
        focusable="false",
        class_="fills",
    )


def key(entries: Sequence[tuple[str | None, str]], top: float) -> tuple[Markup, float]:
    """Return swatches (None: the tick of a mark) with names in rows, and where they end."""
    parts, x, y = [], 0.0, top
    for swatch, name in entries:
        width = 36 + width_of(name)
        if x and x + width > WIDTH:
            x, y = 0.0, y + KEY_ROW_PX
        if swatch is None:
            parts.append(element("path", d=f"M{x + 7:.1f},{y - 2:.1f}v18", class_="tick"))
        else:
            box = {"x": x, "y": y, "width": 14, "height": 14}
            parts.append(element("rect", fill=swatch, class_="part", **box))
        parts.append(label(x + 20, y + 12, name))
        x += width
    return join(*parts), y + KEY_ROW_PX if entries else top


def frame(across: Scale, up: Scale, x: Axis, y: Axis) -> Markup:
    """Return grid lines, ticks and titles of both axes."""
    left, right, bottom, top = across.start, across.end, up.start, up.end
    parts = [label(0, top - 12, y.title)]
    for value in up.ticks:
        place = up.at(value)
        parts.append(element("path", d=f"M{left:.1f},{place:.1f}H{right:.1f}", class_="grid"))
        parts.append(label(left - 6, place + 4, tick(value), anchor="end", quiet=True))
    taken = left - WIDTH
    for value in across.ticks:
        place, name = across.at(value), tick(value)
        half = width_of(name) / 2
        parts.append(element("path", d=f"M{place:.1f},{bottom:.1f}v5", class_="axis"))
        if place - half >= taken:
            parts.append(label(place, bottom + 18, name, anchor="middle", quiet=True))
            taken = place + half + 6
    parts.append(element("path", d=f"M{left:.1f},{bottom:.1f}H{right:.1f}", class_="axis"))
    parts.append(label(right, bottom + 36, x.title, anchor="end"))
    return join(*parts)
