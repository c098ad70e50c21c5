"""Draw horizontal bars of one or more parts: the name above each, its value in words behind it."""

from __future__ import annotations

from oasis_sim.report.page.document import Bar, Bars
from oasis_sim.report.page.markup import Markup, element, join
from oasis_sim.report.page.scales import Scale, scale, tick
from oasis_sim.report.page.svg_parts import WIDTH, drawing, fill, label, shortened, width_of

BAR_PX, ROW_PX = 14.0, 42.0
KEY_ROW_PX = 20.0
LONGEST_NAME = 60


def draw_bars(bars: Bars, words: str) -> Markup:
    """Return the drawing: bars, axis, and the key of the parts and of the mark."""
    ends = [max(sum(bar.parts), bar.mark or 0.0) for bar in bars.bars]
    across = scale(ends, 1.0, WIDTH - 14.0, whole=bars.axis.whole)
    parts = [_bar(bar, index * ROW_PX + 4, across) for index, bar in enumerate(bars.bars)]
    bottom = len(bars.bars) * ROW_PX + 4
    parts.append(_axis(bars, across, bottom))
    key, height = _key(bars, bottom + 44)
    return drawing(height, words, *parts, key)


def _bar(bar: Bar, top: float, across: Scale) -> Markup:
    value = shortened(bar.text, LONGEST_NAME)
    room = int((WIDTH - width_of(value) - 12) / width_of("x"))
    parts = [
        label(0, top + 14, shortened(bar.label, max(room, 8))),
        label(WIDTH, top + 14, value, anchor="end", quiet=True),
    ]
    left = 0.0
    for index, part in enumerate(bar.parts):
        start, end = across.at(left), across.at(left + part)
        if end > start:
            parts.append(
                element(
                    "rect",
                    x=start,
                    y=top + 19,
                    width=end - start,
                    height=BAR_PX,
                    fill=fill(index),
                    class_="part",
                )
            )
        left += part
    if bar.mark is not None:
        place = across.at(bar.mark)
        parts.append(
            element("path", d=f"M{place:.1f},{top + 15:.1f}v{BAR_PX + 8:.1f}", class_="tick")
        )
    return join(*parts)


def _axis(bars: Bars, across: Scale, bottom: float) -> Markup:
    parts = [element("path", d=f"M1,{bottom:.1f}H{across.end:.1f}", class_="axis")]
    for value in across.ticks:
        place = across.at(value)
        anchor = "start" if value == 0 else "end" if value == across.ticks[-1] else "middle"
        parts.append(element("path", d=f"M{place:.1f},{bottom:.1f}v5", class_="axis"))
        parts.append(label(place, bottom + 18, tick(value), anchor=anchor, quiet=True))
    parts.append(label(0, bottom + 36, bars.axis.title))
    return join(*parts)


def _key(bars: Bars, top: float) -> tuple[Markup, float]:
    """Return swatches with names, and where the drawing ends; one part alone needs none."""
    named = list(enumerate(bars.parts)) if len(bars.parts) > 1 else []
    entries: list[tuple[int | None, str]] = [(index, name) for index, name in named]
    if bars.mark_name and any(bar.mark is not None for bar in bars.bars):
        entries.append((None, bars.mark_name))
    parts, x, y = [], 0.0, top
    for index, name in entries:
        width = 20 + width_of(name) + 16
        if x and x + width > WIDTH:
            x, y = 0.0, y + KEY_ROW_PX
        if index is None:
            parts.append(element("path", d=f"M{x + 7:.1f},{y - 2:.1f}v18", class_="tick"))
        else:
            parts.append(
                element("rect", x=x, y=y, width=14, height=14, fill=fill(index), class_="part")
            )
        parts.append(label(x + 20, y + 12, name))
        x += width
    return join(*parts), y + KEY_ROW_PX if entries else top
