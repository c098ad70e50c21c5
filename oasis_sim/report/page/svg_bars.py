"""Draw horizontal bars of one or more parts: the name above each, its value in words behind it."""

from __future__ import annotations

from oasis_sim.report.page.document import Bar, Bars
from oasis_sim.report.page.markup import Markup, element, join
from oasis_sim.report.page.scales import Scale, scale, tick
from oasis_sim.report.page.svg_parts import WIDTH, drawing, fill, key, label, shortened, width_of

BAR_PX, ROW_PX = 14.0, 42.0
LONGEST_NAME = 60


def draw_bars(bars: Bars, words: str) -> Markup:
    """Return the drawing: bars, axis, and the key of the parts and of the mark."""
    ends = [max(sum(bar.parts), bar.mark or 0.0) for bar in bars.bars]
    across = scale(ends, 1.0, WIDTH - 14.0, whole=bars.axis.whole)
    parts = [_bar(bars, bar, index * ROW_PX + 4, across) for index, bar in enumerate(bars.bars)]
    bottom = len(bars.bars) * ROW_PX + 4
    parts.append(_axis(bars, across, bottom))
    entries, height = _key(bars, bottom + 44)
    return drawing(height, words, *parts, entries)


def _bar(bars: Bars, bar: Bar, top: float, across: Scale) -> Markup:
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
                    fill=fill(bars.fill_of(index)),
                    class_="part",
                )
            )
        left += part
    if bar.mark is not None:
        place = across.at(bar.mark)
        parts.append(
            element("path", d=f"M{place:.1f},{top + 18:.1f}v{BAR_PX + 4:.1f}", class_="tick")
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
    """Return the key of the parts that are drawn and of the mark; one part alone needs none."""
    entries: list[tuple[str | None, str]] = [
        (fill(bars.fill_of(index)), name)
        for index, name in enumerate(bars.parts)
        if len(bars.parts) > 1 and any(bar.parts[index] > 0 for bar in bars.bars)
    ]
    if bars.mark_name and any(bar.mark is not None for bar in bars.bars):
        entries.append((None, bars.mark_name))
    return key(entries, top)
