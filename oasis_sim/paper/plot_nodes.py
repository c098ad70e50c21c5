"""Figures of disaggregated serving: 12, 14 and 15."""

from __future__ import annotations

from typing import Any

from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.paper.plot_points import (
    COLOURS,
    PALETTE,
    PUBLISHED,
    SIMULATED,
    chosen,
    points,
    values_of,
)
from oasis_sim.report.plot_axes import ratio_axis


def draw_fig12(figure: Any, comparison: Comparison) -> None:
    """Draw a row per metric and a column per context: lines simulated, open circles published."""
    metrics = {
        "output_tokens_per_s": "tokens / s",
        "host_gib_mean": "host memory, mean, GiB",
        "host_gib_peak": "host memory, peak, GiB",
    }
    contexts = values_of(comparison, "context_tokens")
    grid = figure.subplots(len(metrics), len(contexts), sharex=True, squeeze=False)
    for line, (metric, unit) in zip(grid, metrics.items(), strict=True):
        for axes, context in zip(line, contexts, strict=True):
            for system in values_of(comparison, "system"):
                rows = chosen(comparison, metric, {"context_tokens": context, "system": system})
                _both(axes, rows, "request_rate", COLOURS[str(system)], str(system))
            axes.set_ylabel(unit)
    _titles(figure, grid, contexts, "requests / s")


def draw_fig14(figure: Any, comparison: Comparison) -> None:
    """Draw a panel per context: what is sent at first and fetched later, by fetch ratio."""
    contexts = values_of(comparison, "context_tokens")
    grid = figure.subplots(1, len(contexts), sharey=True, squeeze=False)
    for axes, context in zip(grid[0], contexts, strict=True):
        for number, metric in enumerate(("admission_gib", "drift_gib")):
            rows = chosen(comparison, metric, {"context_tokens": context})
            _both(axes, rows, "fetch_ratio", PALETTE[number], metric.removesuffix("_gib"))
        ratio_axis(axes, values_of(comparison, "fetch_ratio"))
        axes.set_ylabel("GiB per request")
    _titles(figure, grid, contexts, "fetch ratio")


def draw_fig15(figure: Any, comparison: Comparison) -> None:
    """Draw a panel per context: the gain in TTFT by prefix hits, a line per network."""
    contexts = values_of(comparison, "context_tokens")
    grid = figure.subplots(1, len(contexts), sharey=True, squeeze=False)
    for axes, context in zip(grid[0], contexts, strict=True):
        for number, gbit in enumerate(values_of(comparison, "network_gbit_per_s")):
            where = {"context_tokens": context, "network_gbit_per_s": gbit}
            rows = chosen(comparison, "ttft_speedup", where)
            _both(axes, rows, "hit_fraction", PALETTE[number], f"{gbit} Gbit/s")
        axes.set_ylabel("TTFT, full over partial")
    _titles(figure, grid, contexts, "prefix hits")


def _both(axes: Any, rows: list[Row], over: str, colour: str, label: str) -> None:
    simulated, published = (points(rows, over, kind) for kind in (SIMULATED, PUBLISHED))
    axes.plot(
        simulated.x, simulated.y, ".-", color=colour, linewidth=1.3, label=f"{label}, simulated"
    )
    if published.x:
        axes.plot(
            published.x,
            published.y,
            "o",
            color=colour,
            fillstyle="none",
            markersize=7,
            label=f"{label}, published",
        )


def _titles(figure: Any, grid: Any, contexts: list[Any], below: str) -> None:
    for axes, context in zip(grid[0], contexts, strict=True):
        axes.set_title(f"{context // 1024}K context", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel(below)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
