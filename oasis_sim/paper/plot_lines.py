"""Figures that are drawn as lines and points: Figures 1, 4, 6 and 11."""

from __future__ import annotations

from typing import Any

from oasis_sim.paper.accuracy import MEAN
from oasis_sim.paper.attention import NATIVE
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

MARKERS = {"gqa": "o", "mla": "s", "dsa": "D", "nsa": "^", "hybrid": "v", "windowed": "P"}
TIERS = {"hbm": ("HBM", "-"), "pcie": ("PCIe", "--"), "network": ("network", ":")}


def draw_fig1(figure: Any, comparison: Comparison) -> None:
    """Draw the roofs of the tiers and every model at its intensity, under its batch's limit."""
    axes = figure.subplots()
    placed = _places(comparison)
    ends: list[tuple[float, float, str]] = []
    for tier, (title, line) in TIERS.items():
        at = [(x, roof) for (_, each), (x, roof, _) in placed.items() if each == tier]
        rate = max(roof / x for x, roof in at)
        low, high = min(x for x, _ in at) / 2, max(x for x, _ in at) * 2
        axes.plot([low, high], [low * rate, high * rate], line, color="#888888", linewidth=1)
        ends.append((high * rate, high, title))
    for height, right, title in ends:
        axes.annotate(
            title,
            (right, height),
            xytext=(3, 0),
            textcoords="offset points",
            color="#555555",
            # Roofs of PCIe and network may end at about one height.
            va="top" if height == min(ends)[0] else "bottom",
        )
    names = list(dict.fromkeys(name for name, _ in placed))
    for index, name in enumerate(names):
        model, attention, system = name
        mine = [place for (each, _), place in placed.items() if each == name]
        axes.plot(
            [x for x, _, _ in mine],
            [y for _, _, y in mine],
            MARKERS[attention],
            color=PALETTE[index % len(PALETTE)],
            fillstyle="full" if system != "dense" else "none",
            label=f"{model}, {attention if system == NATIVE else system}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("Token-KV intensity, tokens per GB moved over the tier")
    axes.set_ylabel("tokens / s per GPU at most (tier and batch)")
    figure.legend(loc="outside right center", fontsize=8)


Place = tuple[float, float, float]


def _places(comparison: Comparison) -> dict[tuple[tuple[str, str, str], str], Place]:
    """Return (intensity, roof of the tier, lower of roof and batch) by model and tier, per GPU."""
    values: dict[tuple[tuple[str, str, str], str, str], float] = {}
    for row in comparison.rows:
        keys = row.keys
        name = (str(keys["model"]), str(keys["attention"]), str(keys["system"]))
        if row.simulated is not None:
            share = 1.0 if row.unit == "tok/GB" else float(row.extra["gpus"] or 1)
            values[name, str(keys["roof"]), row.unit] = row.simulated / share
    found = {}
    for (name, roof, unit), value in values.items():
        if unit == "tok/GB" and (name, roof, "tok/s") in values:
            permitted = values[name, roof, "tok/s"]
            batch = values.get((name, "batch", "tok/s"), permitted)
            found[name, roof] = (value, permitted, min(permitted, batch))
    return found


def draw_fig4(figure: Any, comparison: Comparison) -> None:
    """Draw the accuracy of both predictors by layer, with the published means."""
    axes = figure.subplots()
    for predictor in values_of(comparison, "predictor"):
        rows = chosen(comparison, "top20_accuracy_pct", {"predictor": predictor})
        line = points([row for row in rows if _is_layer(row)], "layer", SIMULATED)
        colour = COLOURS[str(predictor)]
        axes.plot(line.x, line.y, "o-", color=colour, markersize=4, label=f"{predictor}, simulated")
        _published_mean(axes, rows, colour, f"{predictor}, published mean")
    axes.set_ylim(60, 101)
    axes.set_xlabel("layer")
    axes.set_ylabel("top-20 accuracy, %")
    axes.legend(loc="lower right", ncols=2, fontsize=8)


def draw_fig6(figure: Any, comparison: Comparison) -> None:
    """Draw the agreement by layer, published as a line, simulated as points."""
    axes = figure.subplots()
    rows = [row for row in comparison.rows if _is_layer(row)]
    published, simulated = (points(rows, "layer", kind) for kind in (PUBLISHED, SIMULATED))
    axes.plot(published.x, published.y, "-", color="#888888", label=PUBLISHED)
    axes.plot(simulated.x, simulated.y, "o", color=COLOURS["draft"], label=SIMULATED)
    lowest = min((*published.y, *simulated.y), default=97.0)
    axes.set_ylim(min(97.0, lowest - 0.5), 100)
    axes.set_xlabel("layer")
    axes.set_ylabel("agreement of the top 128, %")
    axes.legend()


def _is_layer(row: Row) -> bool:
    return not isinstance(row.keys["layer"], str)


def _published_mean(axes: Any, rows: list[Row], colour: str, label: str) -> None:
    for row in rows:
        if row.keys["layer"] == MEAN and row.published is not None:
            axes.axhline(row.published, color=colour, linestyle="--", linewidth=1, label=label)


def draw_fig11(figure: Any, comparison: Comparison) -> None:
    """Draw a row per metric and a column per model: lines simulated, open circles published."""
    metrics = {
        "output_tokens_per_s": "tokens / s",
        "running_batch": "running batch",
        "tpot_ms": "TPOT, ms",
    }
    models = values_of(comparison, "model")
    grid = figure.subplots(len(metrics), len(models), sharex=True, squeeze=False)
    for line, (metric, unit) in zip(grid, metrics.items(), strict=True):
        for axes, model in zip(line, models, strict=True):
            for system in values_of(comparison, "system"):
                rows = chosen(comparison, metric, {"model": model, "system": system})
                _systems(axes, rows, str(system))
            axes.set_xscale("log", base=2)
            if metric == "tpot_ms":
                axes.set_yscale("log", subs=(2, 5))
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("{x:g}")
            axes.set_ylabel(unit)
    for axes, model in zip(grid[0], models, strict=True):
        axes.set_title(f"Qwen3-{str(model).upper()}", fontsize=9)
    ticks = values_of(comparison, "concurrency")
    for axes in grid[-1]:
        axes.set_xlabel("max concurrency")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)


def _systems(axes: Any, rows: list[Row], system: str) -> None:
    simulated, published = (points(rows, "concurrency", kind) for kind in (SIMULATED, PUBLISHED))
    colour = COLOURS.get(system, PALETTE[-1])
    axes.plot(
        simulated.x, simulated.y, ".-", color=colour, linewidth=1.3, label=f"{system}, simulated"
    )
    if published.x:
        axes.plot(
            published.x,
            published.y,
            "o",
            color=colour,
            fillstyle="none",
            markersize=7,
            label=f"{system}, published",
        )
