"""Axes of pictures: fetch ratios, numbers over several magnitudes, labels that stay apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINEAR_PART = 0.5
"""The stretch from 0 to the least ratio, in decades of the axis."""
_MOST_FOR_STEPS = 1e3
"""Up to this ratio of the limits 2 and 5 of each decade have labels, too."""
_LEAST_GAP_PX = 3.0


def ratio_axis(axes: Axes, ratios: Iterable[float]) -> None:
    """Make x an axis of fetch ratios, logarithmic (below the least but 0 linear), all labelled."""
    shown = sorted(set(ratios))
    least = min((ratio for ratio in shown if ratio > 0), default=1.0)
    axes.set_xscale("symlog", linthresh=least, linscale=_LINEAR_PART)
    axes.set_xticks(shown, ["all" if ratio == 1.0 else f"{ratio:g}" for ratio in shown])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("fetch ratio")


def magnitude_axis(axes: Axes) -> None:
    """Make y logarithmic with plain numbers; what is drawn later may not widen it."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low < _MOST_FOR_STEPS else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.minorticks_off()


def thin_labels(figure: Figure) -> None:
    """Hide each label of an x axis that would touch the one to its right."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        low, high = sorted(axes.get_xlim())
        taken = float("inf")
        for tick in reversed(axes.xaxis.get_major_ticks()):
            box = tick.label1.get_window_extent()
            if not low <= tick.get_loc() <= high or not box.width:
                continue
            if box.x1 + _LEAST_GAP_PX > taken:
                tick.label1.set_visible(False)
            else:
                taken = box.x0
