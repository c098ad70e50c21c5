"""Tables and figure of ``validation/quality-smollm2-*.json``, as docs/quality.md shows them.

    python benchmarks/quality_report.py [--svg docs/quality-smollm2.svg]

Prints, per text and budget, KL by fetch ratio; whether it falls with the ratio (within the
intervals, and by paired differences of neighbouring ratios, each alone and all together); and the
draft's KL over that of the previous token. All intervals are 95 %, by the block bootstrap of
``oasis_sim.quality.bootstrap`` over the steps, paired.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.report.plot_axes import magnitude_axis, ratio_axis
from oasis_sim.report.plotfile import STYLE, save_figure
from oasis_sim.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
TEXTS = ("prose", "code", "question")
RESAMPLES = 4000
APART = 1.04
"""Lines beside one another at the same fetch ratio are drawn this factor apart."""

Values = NDArray[np.float64]
Case = dict[str, Any]


def main() -> None:
    """Print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    found = {text: read(text) for text in TEXTS if places(text)}
    for text, each in found.items():
        table(text, each["study"])
    for text, each in found.items():
        steps_up(text, each["study"])
    rises_together({text: each["study"] for text, each in found.items()})
    for text in found:
        if len(places(text)) > 1:
            beside_the_cpu(text)
    against_previous({text: each["study"] for text, each in found.items()})
    if arguments.svg is not None:
        draw({text: each["study"] for text, each in found.items()}, arguments.svg)


def places(text: str) -> list[Path]:
    """Return the results of a text, that of a GPU first."""
    folder = ROOT / "validation"
    named = [folder / f"quality-smollm2-{text}{where}.json" for where in ("-gpu", "")]
    return [place for place in named if place.exists()]


def read(text: str) -> dict[str, Any]:
    """Read a text's result."""
    found: dict[str, Any] = json.loads(places(text)[0].read_text(encoding="utf-8"))
    return found


def lines(study: dict[str, Any]) -> dict[tuple[int, str], list[Case]]:
    """Return the cases by budget and predictor, each by rising ratio."""
    by_line: dict[tuple[int, str], list[Case]] = {}
    for case in sorted(study["cases"], key=lambda case: float(case["fetch_ratio"])):
        by_line.setdefault((case["budget_tokens"], case["predictor"]), []).append(case)
    return dict(sorted(by_line.items()))


def interval(values: Values) -> str:
    """Return a mean and its interval as text."""
    found = BlockBootstrap(len(values), resamples=RESAMPLES, seed=0).estimate(values)
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def table(text: str, study: dict[str, Any]) -> None:
    """Print one row per budget and cap, draft beside previous token, as Markdown."""
    by_line = lines(study)
    for budget in sorted({key[0] for key in by_line}):
        pairs = zip(by_line[budget, "draft"], by_line[budget, "previous"], strict=True)
        by_cap: dict[int, tuple[list[str], Case, Case]] = {}
        for draft, previous in pairs:
            ratio = "all" if draft["fetch_ratio"] == 1.0 else f"{draft['fetch_ratio']:g}"
            by_cap.setdefault(draft["cap_blocks"], ([], draft, previous))[0].append(ratio)
        for cap, (ratios, draft, previous) in by_cap.items():
            kl = [case["kl"] for case in (draft, previous)]
            shown_kl = [f"{k['mean']:.3f} [{k['low']:.3f}, {k['high']:.3f}]" for k in kl]
            print(
                f"| {text} | {budget:,} | {', '.join(ratios)} ({cap}) | {shown_kl[0]} "
                f"| {shown_kl[1]} | {draft['top1_agreement']['mean']:.2f} "
                f"| {draft['nll_difference']['mean']:+.3f} | {draft['attention_mass']['mean']:.3f} "
                f"| {draft['overlap']['mean']:.2f} / {previous['overlap']['mean']:.2f} "
                f"| {draft['bytes_per_step'] / MIB:.2f} |"
            )


def by_step(case: Case) -> Values:
    """Return KL by step."""
    return np.array(case["kl_by_step"])


def steps_up(text: str, study: dict[str, Any]) -> None:
    """Print neighbouring ratios between which KL rises, with the paired difference."""
    for (budget, predictor), cases in lines(study).items():
        against = []
        for lower, higher in pairwise(cases):
            difference = by_step(higher) - by_step(lower)
            found = BlockBootstrap(len(difference), resamples=RESAMPLES, seed=0).estimate(
                difference
            )
            if found.mean > 0:
                against.append(
                    f"{lower['fetch_ratio']:g}->{higher['fetch_ratio']:g}: {interval(difference)}"
                    f"{' SIGNIFICANT' if found.low > 0 else ''}"
                )
        falls = "yes" if monotone(cases) else "NO"
        print(
            f"{text} K={budget} {predictor}: a curve that never rises lies within all intervals: "
            f"{falls}; steps up: {'; '.join(against) or 'none'}"
        )


def rises_together(studies: dict[str, dict[str, Any]]) -> None:
    """Print which rises are significant when all neighbouring ratios are looked at together.

    One test of many: each difference is divided by the standard deviation of its bootstrap means,
    and the largest of all deviations of a draw says how large one is by chance (Romano and Wolf
    2005, one step). Steps are drawn by text; ratios that fetch the same blocks are no test.
    """
    names, sizes, draws = [], [], []
    for seed, (text, study) in enumerate(studies.items()):
        boot = BlockBootstrap(study["steps"] - 1, resamples=RESAMPLES, seed=seed)
        for (budget, predictor), cases in lines(study).items():
            for lower, higher in pairwise(cases):
                difference = by_step(higher) - by_step(lower)
                if not difference.any():
                    continue
                means = boot.means(difference)
                deviation = float(means.std())
                mass = higher["attention_mass"]["mean"] - lower["attention_mass"]["mean"]
                ratios = f"{lower['fetch_ratio']:g}->{higher['fetch_ratio']:g}"
                names.append(
                    f"{text} K={budget} {predictor} {ratios}: {interval(difference)}, mass "
                    f"{mass:+.4f}"
                )
                sizes.append(float(difference.mean()) / deviation)
                draws.append((means - difference.mean()) / deviation)
    largest = np.sort(np.max(draws, axis=0))
    bound = float(np.quantile(largest, 0.95))
    alone = [size for size in sizes if size > 1.96]
    print(
        f"{len(sizes)} neighbouring ratios: {len(alone)} rise by more than 1.96 deviations, "
        f"{sum(size > bound for size in sizes)} by more than {bound:.2f}, which one of all exceeds "
        f"by chance in 5 %"
    )
    for size, name in sorted(zip(sizes, names, strict=True), reverse=True)[:4]:
        chance = float((largest >= size).mean())
        print(f"  {name}: {size:.2f} deviations; by chance somewhere in {chance:.0%}")


def monotone(cases: Sequence[Case]) -> bool:
    """Tell whether some curve that never rises lies within the intervals of all ratios."""
    ceiling = np.minimum.accumulate([case["kl"]["high"] for case in cases])
    return bool(np.all(np.array([case["kl"]["low"] for case in cases]) <= ceiling))


def against_previous(studies: dict[str, dict[str, Any]]) -> None:
    """Print KL with the draft over KL with the previous token, by budget and ratio."""
    for budget in sorted({case["budget_tokens"] for s in studies.values() for case in s["cases"]}):
        both = {text: lines(study) for text, study in studies.items()}
        count = len(next(iter(both.values()))[budget, "draft"])
        for place in range(count):
            pairs = [
                (by_step(each[budget, "draft"][place]), by_step(each[budget, "previous"][place]))
                for each in both.values()
            ]
            ratio = next(iter(both.values()))[budget, "draft"][place]["fetch_ratio"]
            texts = [
                f"{name} {shown(ratio_of([pair]))}" for name, pair in zip(both, pairs, strict=True)
            ]
            print(f"K={budget} ratio {ratio:g}: {shown(ratio_of(pairs))}; {', '.join(texts)}")


def beside_the_cpu(text: str) -> None:
    """Print KL by the kernels on a GPU over KL by the reference on a CPU, paired by step."""
    gpu, cpu = (json.loads(place.read_text(encoding="utf-8"))["study"] for place in places(text))
    pairs, ratios = [], []
    steps = min(gpu["steps"], cpu["steps"]) - 1  # one trajectory; a shorter one ends earlier
    for one, other in zip(gpu["cases"], cpu["cases"], strict=True):
        pairs.append((by_step(one)[:steps], by_step(other)[:steps]))
        ratios.append(float(pairs[-1][0].mean() / pairs[-1][1].mean()))
    fetching = [pair for pair, case in zip(pairs, gpu["cases"], strict=True) if case["cap_blocks"]]
    whole, moving = (ratio_of([summed(some)]) for some in (pairs, fetching))
    print(
        f"{text}, GPU over CPU, {steps} steps: KL, all cases {shown(whole)}, those that fetch "
        f"{shown(moving)}; single cases {min(ratios):.2f} to {max(ratios):.2f}"
    )


def summed(pairs: Sequence[tuple[Values, Values]]) -> tuple[Values, Values]:
    """Return the sums over cases of one text, step by step."""
    first, second = (np.sum(side, axis=0) for side in zip(*pairs, strict=True))
    return first, second


def ratio_of(pairs: Sequence[tuple[Values, Values]]) -> tuple[float, float, float]:
    """Return the ratio of mean KL over all texts, and its interval; steps are drawn by text."""
    sums = np.zeros((2, RESAMPLES))
    means = np.zeros(2)
    for seed, pair in enumerate(pairs):
        boot = BlockBootstrap(len(pair[0]), resamples=RESAMPLES, seed=seed)
        for side, values in enumerate(pair):
            sums[side] += boot.means(values)
            means[side] += values.mean()
    low, high = np.percentile(sums[0] / sums[1], [2.5, 97.5])
    return float(means[0] / means[1]), float(low), float(high)


def shown(found: tuple[float, float, float]) -> str:
    """Return a ratio and its interval as text."""
    return f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"


def draw(studies: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw KL against the fetch ratio and against bytes per step, a column per text."""
    import matplotlib as mpl

    with mpl.rc_context(dict(STYLE)):
        save_figure(figure_of(studies), path)


def figure_of(studies: dict[str, dict[str, Any]]) -> Figure:
    """Return the drawn figure; lines at the same ratio stand a little apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6.6), layout="constrained")
    grid = figure.subplots(2, len(studies), sharey="col", squeeze=False)
    for (top, bottom), (text, study) in zip(grid.T, studies.items(), strict=True):
        by_line = lines(study)
        for number, ((budget, predictor), cases) in enumerate(by_line.items()):
            label = f"K = {budget:,}, {predictor}"
            aside = APART ** (number - (len(by_line) - 1) / 2)
            ratios = [case["fetch_ratio"] * aside for case in cases]
            traffic = [case["bytes_per_step"] / MIB for case in cases]
            for axes, places in ((top, ratios), (bottom, traffic)):
                _line(axes, places, cases, label, predictor)
        top.set_title(f"{text}: {study['prompt_tokens']:,} tokens, {study['steps']} steps")
        ratio_axis(top, (case["fetch_ratio"] for case in study["cases"]))
        bottom.set_xlabel("MiB fetched per step and request (16-bit)")
        magnitude_axis(top)
    for row in grid:
        row[0].set_ylabel("KL(full || sparse), nats")
    handles = grid[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[1]))
    return figure


def _line(axes: Any, places: Sequence[float], cases: Sequence[Case], label: str, name: str) -> None:
    kl = [case["kl"] for case in cases]
    means = [found["mean"] for found in kl]
    below = [found["mean"] - found["low"] for found in kl]
    above = [found["high"] - found["mean"] for found in kl]
    style = {"draft": "-", "previous": "--"}[name]
    axes.errorbar(
        places, means, yerr=[below, above], fmt=style, marker="o", markersize=3, linewidth=1,
        capsize=2, label=label,
    )  # fmt: skip


if __name__ == "__main__":
    main()
