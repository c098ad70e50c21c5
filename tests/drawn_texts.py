"""The texts of a picture as they are drawn: which touch, which are cut off."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text


def faults(figure: Figure) -> list[str]:
    """Return the pairs of texts that overlap, and the texts that leave the figure."""
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown(figure)]
    assert boxes
    touching = [
        f"{one} over {other}"
        for (one, first), (other, second) in combinations(boxes, 2)
        if first.overlaps(second)
    ]
    whole = figure.bbox.padded(1.0)
    cut = [name for name, box in boxes if not all(whole.contains(*at) for at in (box.p0, box.p1))]
    return touching + [f"{name} is cut off" for name in cut]


def shown(figure: Figure) -> Iterator[Text]:
    """Yield the texts of a figure that are drawn and say something."""
    for text in _all(figure):
        if text.get_visible() and text.get_text():
            yield text


def _all(figure: Figure) -> Iterator[Text]:
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from axes.texts
        yield from (axes.title, axes.xaxis.label, axes.yaxis.label)
        inside = axes.get_legend()
        yield from () if inside is None else inside.get_texts()
        yield from _ticks(axes)


def _ticks(axes: Axes) -> Iterator[Text]:
    """Yield the labels of ticks within the limits; others exist but are not drawn."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        yield from (tick.label1 for tick in ticks if low <= tick.get_loc() <= high)
