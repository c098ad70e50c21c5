"""Draw a comparison as the figure that it reproduces, from its rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from oasis_sim.paper import (
    fig1,
    fig2,
    fig4,
    fig6,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    plot_bars,
    plot_lines,
    plot_nodes,
    table2,
)
from oasis_sim.paper.comparison import Comparison
from oasis_sim.report.plotfile import STYLE, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Any, Comparison], None]

DRAWN: Mapping[str, tuple[Draw, tuple[float, float]]] = MappingProxyType(
    {
        fig1.NAME: (plot_lines.draw_fig1, (8.4, 5.0)),
        fig2.NAME: (plot_bars.draw_fig2, (8.0, 3.2)),
        fig4.NAME: (plot_lines.draw_fig4, (6.4, 3.4)),
        fig6.NAME: (plot_lines.draw_fig6, (6.4, 3.4)),
        table2.NAME: (plot_bars.draw_table2, (9.6, 3.2)),
        fig11.NAME: (plot_lines.draw_fig11, (9.0, 8.0)),
        fig12.NAME: (plot_nodes.draw_fig12, (9.0, 8.0)),
        fig13.NAME: (plot_bars.draw_fig13, (6.8, 3.4)),
        fig14.NAME: (plot_nodes.draw_fig14, (9.0, 4.0)),
        fig15.NAME: (plot_nodes.draw_fig15, (8.0, 3.6)),
    }
)
"""How each table or figure is drawn, and its size in inches."""


def draw(comparison: Comparison, path: Path) -> None:
    """Draw a comparison into a file; the same comparison gives the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context(dict(STYLE)):
        save_figure(figure_of(comparison), path)


def figure_of(comparison: Comparison) -> Figure:
    """Return the drawn figure."""
    from matplotlib.figure import Figure

    drawer, size = DRAWN[comparison.name]
    figure = Figure(figsize=size, layout="constrained")
    drawer(figure, comparison)
    figure.suptitle(comparison.title.replace("$", r"\$"), fontsize=9)
    return figure
