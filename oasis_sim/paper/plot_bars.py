"""Tables and figures that are drawn as bars: Figure 2, Table 2, Figure 13."""

from __future__ import annotations

from typing import Any

from oasis_sim.paper.comparison import Comparison, Row
from oasis_sim.paper.plot_points import (
    COLOURS,
    LIGHT,
    PUBLISHED,
    SIMULATED,
    chosen,
    values_of,
)

WIDTH = 0.38


def _pairs(axes: Any, rows: list[Row], labels: list[str], unit: str) -> None:
    """Draw published and simulated bars side by side; a missing value leaves its place empty."""
    anything = any(row.published is not None for row in rows)
    width = WIDTH if anything else 2 * WIDTH
    for place, row in enumerate(rows):
        if row.published is not None:
            axes.bar(place - WIDTH / 2, row.published, width, color=LIGHT, edgecolor="#555555")
        if row.simulated is not None:
            offset = WIDTH / 2 if anything else 0.0
            dense = row.keys.get("budget_blocks") == 0
            axes.bar(
                place + offset, row.simulated, width, color=COLOURS["dense" if dense else "oasis"]
            )
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel(unit)


def _legend(figure: Any, anything_published: bool) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=COLOURS["oasis"], label=SIMULATED)]
    if anything_published:
        handles.insert(0, Patch(facecolor=LIGHT, edgecolor="#555555", label=PUBLISHED))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


def draw_fig2(figure: Any, comparison: Comparison) -> None:
    """Draw a panel per number of attended tokens, bars by batch."""
    attended = values_of(comparison, "attended_tokens")
    for axes, tokens in zip(
        figure.subplots(1, len(attended), sharey=True, squeeze=False)[0], attended, strict=True
    ):
        rows = chosen(comparison, "retrieval_share_pct", {"attended_tokens": tokens})
        _pairs(axes, rows, [f"{row.keys['batch']:g}" for row in rows], "")
        axes.set_title(f"{tokens:,} tokens", fontsize=9)
        axes.set_xlabel("batch")
    figure.axes[0].set_ylabel("retrieval, % of the time per token")
    _legend(figure, anything_published=True)


def draw_table2(figure: Any, comparison: Comparison) -> None:
    """Draw a panel per column of the table, bars by fetch ratio."""
    panels = {
        "output_tokens_per_s": "tokens / s",
        "step_ms": "ms per step",
        "fetch_gb_per_step": "GB fetched per step",
    }
    for axes, (metric, unit) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        rows = chosen(comparison, metric, {})
        ratios = [float(row.keys["fetch_ratio"]) for row in rows]
        _pairs(axes, rows, ["all" if ratio == 1.0 else f"{ratio:g}" for ratio in ratios], unit)
        axes.set_xlabel("fetch ratio")
    _legend(figure, anything_published=True)


def draw_fig13(figure: Any, comparison: Comparison) -> None:
    """Draw a panel per model, bars by budget; dense in grey."""
    models = values_of(comparison, "model")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        rows = chosen(comparison, "output_tokens_per_s", {"model": model})
        budgets = [row.keys["budget_blocks"] for row in rows]
        _pairs(axes, rows, [f"{budget}" if budget else "dense" for budget in budgets], "tokens / s")
        for container in axes.containers:
            axes.bar_label(container, fmt="{:,.0f}")
        axes.set_xlabel("budget, blocks of 16 tokens")
        axes.set_title(f"Qwen3-{str(model).upper()}", fontsize=9)
