"""The picture of a study: KL against the fetch ratio, and against the bytes fetched per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oasis_sim.fileio import printable
from oasis_sim.quality.result import CaseQuality, QualityResult
from oasis_sim.report.plotfile import STYLE, save_figure
from oasis_sim.units import MIB

_SMALLEST_KL = 1e-5


def draw_plot(result: QualityResult, path: Path) -> None:
    """Draw a study; the same study gives the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(dict(STYLE)):
        figure = Figure(figsize=(9.6, 3.6))
        left, right = figure.subplots(1, 2, sharey=True)
        for name, cases in _lines(result).items():
            _draw(left, cases, lambda case: case.fetch_ratio, name)
            _draw(right, cases, lambda case: case.bytes_per_step / MIB, name)
        left.set_xscale("symlog", linthresh=0.01)
        ratios = sorted({case.fetch_ratio for case in result.cases})
        left.set_xticks(ratios, ["all" if ratio == 1.0 else f"{ratio:g}" for ratio in ratios])
        left.minorticks_off()
        left.set_xlabel("fetch ratio")
        left.set_ylabel("KL(full || sparse), nats")
        left.set_yscale("log")
        right.set_xlabel("MiB fetched per step and request (16-bit keys and values)")
        left.legend(frameon=False)
        figure.suptitle(_title(result), fontsize=9)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        save_figure(figure, path)


def _lines(result: QualityResult) -> dict[str, list[CaseQuality]]:
    """Return the cases by budget and predictor, each line by rising fetch ratio."""
    lines: dict[str, list[CaseQuality]] = {}
    for case in sorted(result.cases, key=lambda each: each.fetch_ratio):
        scheme = case.scheme
        lines.setdefault(f"K = {scheme.budget_tokens}, {scheme.predictor}", []).append(case)
    return dict(sorted(lines.items()))


def _draw(
    axes: Any, cases: Sequence[CaseQuality], place: Callable[[CaseQuality], float], name: str
) -> None:
    """Draw one line with its intervals; a KL of 0 is drawn at the lower edge."""
    kl = [case.estimates["kl"] for case in cases]
    means = [max(found.mean, _SMALLEST_KL) for found in kl]
    below = [mean - max(found.low, _SMALLEST_KL) for mean, found in zip(means, kl, strict=True)]
    above = [max(found.high, mean) - mean for mean, found in zip(means, kl, strict=True)]
    axes.errorbar(
        [place(case) for case in cases],
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
    title = (
        f"{facts['model']['name']}, {facts['text']['name']}, {facts['prompt_tokens']} tokens, "
        f"{facts['steps']} steps; bars: 95 % {facts['interval']['method'].split(',')[0]}"
    )
    # A dollar sign would start a formula.
    return printable(title, 200).replace("$", r"\$")
