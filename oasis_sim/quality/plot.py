"""The picture of a study: KL against the fetch ratio, and against the bytes fetched per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oasis_sim.fileio import printable
from oasis_sim.quality.result import CaseQuality, QualityResult
from oasis_sim.report.plot_axes import magnitude_axis, ratio_axis
from oasis_sim.report.plotfile import STYLE, save_figure
from oasis_sim.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALLEST_KL = 1e-5
_APART = 1.03
"""Lines beside one another at the same fetch ratio are drawn this factor apart."""
_LEGEND_COLUMNS = 3


def draw_plot(result: QualityResult, path: Path) -> None:
    """Draw a study; the same study gives the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context(dict(STYLE)):
        save_figure(figure_of(result), path)


def figure_of(result: QualityResult) -> Figure:
    """Return the drawn figure."""
    from matplotlib.figure import Figure

    lines = _lines(result)
    rows = math.ceil(len(lines) / _LEGEND_COLUMNS)
    figure = Figure(figsize=(9.6, 3.6 + 0.25 * rows), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, cases) in enumerate(lines.items()):
        aside = _APART ** (number - (len(lines) - 1) / 2)
        _draw(left, cases, [case.fetch_ratio * aside for case in cases], name)
        _draw(right, cases, [case.bytes_per_step / MIB for case in cases], name)
    ratio_axis(left, (case.fetch_ratio for case in result.cases))
    left.set_ylabel("KL(full || sparse), nats")
    magnitude_axis(left)
    right.set_xlabel("MiB fetched per step and request (16-bit keys and values)")
    drawn = left.get_legend_handles_labels()
    figure.legend(*drawn, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False)
    figure.suptitle(_title(result), fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _lines(result: QualityResult) -> dict[str, list[CaseQuality]]:
    """Return the cases by scheme, budget and predictor, each line by rising fetch ratio."""
    lines: dict[str, list[CaseQuality]] = {}
    several = len(result.names) > 1
    for case in sorted(result.cases, key=lambda each: each.fetch_ratio):
        scheme = case.scheme
        who = f"{scheme.name}, " if several else ""
        lines.setdefault(f"{who}K = {scheme.budget_tokens}, {scheme.predictor}", []).append(case)
    return dict(sorted(lines.items()))


def _draw(axes: Any, cases: Sequence[CaseQuality], places: Sequence[float], name: str) -> None:
    """Draw one line with its intervals; a KL of 0 is drawn at the lower edge."""
    kl = [case.estimates["kl"] for case in cases]
    means = [max(found.mean, _SMALLEST_KL) for found in kl]
    below = [mean - max(found.low, _SMALLEST_KL) for mean, found in zip(means, kl, strict=True)]
    above = [max(found.high, mean) - mean for mean, found in zip(means, kl, strict=True)]
    axes.errorbar(
        places,
        means,
        yerr=[[max(0.0, size) for size in below], above],
        marker="o",
        markersize=3,
        linewidth=1,
        capsize=2,
        label=name,
    )


def _title(result: QualityResult) -> str:
    facts = result.facts
    interval = facts["interval"]["method"].split(",")[0]
    scheme = f"{result.names[0]}: " if len(result.names) == 1 else ""
    title = (
        f"{scheme}{facts['model']['name']}, {facts['text']['name']}, "
        f"{facts['prompt_tokens']} tokens, {facts['steps']} steps; bars: 95 % {interval}"
    )
    # A dollar sign would start a formula.
    return printable(title, 200).replace("$", r"\$")
