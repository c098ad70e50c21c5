"""What ``validation/quality-long-*.json`` say: GPU beside CPU, fetch ratios, draft beside previous.

    python benchmarks/long_report.py [--folder validation]

All intervals are 95 % percentile intervals of a bootstrap over seeds, drawn within each prompt;
what is compared is drawn together. KL of several prompts is the mean of theirs. Step 0, which
starts with its true set, is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from long_results import ROOT, RUNS, TEXTS, UNIT, Case, LongText, Seed, Values, load
from numpy.typing import NDArray

RESAMPLES = 10_000
BLOCKS = {512: 32, 1024: 64}


@dataclass(frozen=True)
class Sums:
    """Hold, for the seeds of one prompt, summed KL of every case and the number of steps.

    ``kl`` [N, R] and ``steps`` [N]; ``drawn`` int [D, N] are the bootstrap's seeds.
    """

    kl: Values
    steps: Values
    drawn: NDArray[np.int64]

    @property
    def mean(self) -> Values:
        """Return mean KL by case, [R]."""
        return np.asarray(self.kl.sum(axis=0) / self.steps.sum())

    @property
    def means(self) -> Values:
        """Return mean KL by draw and case, [D, R]."""
        steps = self.steps[self.drawn].sum(axis=1)
        return np.asarray(self.kl[self.drawn].sum(axis=1) / steps[:, None])


Choose = Callable[[Seed], "Values | None"]
"""Return KL [R, S] of a seed's steps that count; None leaves the seed out."""


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "validation")
    arguments = parser.parse_args()
    texts = {name: load(name, arguments.folder) for name in TEXTS}
    for name, text in texts.items():
        counts = {run: sum(each.kl[run].shape[1] - 1 for each in text.seeds if run in each.kl)
                  for run in RUNS}  # fmt: skip
        accepted = np.concatenate([each.after_accepted[1:] for each in text.seeds]).mean()
        print(f"{name}: {len(text.seeds)} seeds, steps {counts}, accepted {accepted:.2f}")
    agreement(texts)
    for run in ("alone", "cpu"):
        print(f"\n{run}: KL by ratio")
        by_ratio(texts, run)
        print(f"\n{run}: draft over previous token")
        against_previous(texts, run)


def sums(texts: dict[str, LongText], choose: Choose) -> dict[str, Sums]:
    """Return the sums of what is chosen, by prompt; equal seeds of the draws for equal counts."""
    found = {}
    for place, (name, text) in enumerate(texts.items()):
        kept = [part for seed in text.seeds if (part := choose(seed)) is not None]
        generator = np.random.default_rng(place)
        found[name] = Sums(
            np.stack([part.sum(axis=1) for part in kept]),
            np.array([part.shape[1] for part in kept], dtype=float),
            generator.integers(0, len(kept), (RESAMPLES, len(kept))),
        )
    return found


def of_run(run: str, seed: Seed) -> Values | None:
    """Return a run's KL without step 0."""
    return seed.kl[run][:, 1:] if run in seed.kl else None


def paired(run: str, seed: Seed) -> Values | None:
    """Return the KL of a run in the steps that the CPU and the GPU alone have both done."""
    if not {"cpu", "alone"} <= seed.kl.keys():
        return None
    steps = min(seed.kl[each].shape[1] for each in ("cpu", "alone"))
    return seed.kl[run][:, 1:steps]


def ratio(over: Values, under: Values, overs: Values, unders: Values) -> str:
    """Return a ratio with its interval as text."""
    low, high = np.percentile(overs / unders, [2.5, 97.5])
    return f"{over / under:.3f} [{low:.3f}, {high:.3f}]"


def together(parts: list[Values]) -> Values:
    """Return the mean over prompts."""
    return np.asarray(np.mean(parts, axis=0))


def views(found: dict[str, Sums]) -> Iterator[tuple[str, Values, Values]]:
    """Return means and drawn means, for all prompts together and for each."""
    yield (
        "all",
        together([s.mean for s in found.values()]),
        together([s.means for s in found.values()]),
    )
    for name, each in found.items():
        yield name, each.mean, each.means


def agreement(texts: dict[str, LongText]) -> None:
    """Print KL on the GPU over KL on the CPU, case by case and in sum."""
    cases = next(iter(texts.values())).cases
    gpu = sums(texts, lambda seed: paired("alone", seed))
    cpu = sums(texts, lambda seed: paired("cpu", seed))
    steps = {name: int(each.steps.sum()) for name, each in cpu.items()}
    print(f"\nGPU over CPU; steps {steps}")
    fetching = [place for place, case in enumerate(cases) if case[2]]
    for (name, one, ones), (_, two, twos) in zip(views(gpu), views(cpu), strict=True):
        ratios = one / two
        low, high = np.percentile(ones / twos, [2.5, 97.5], axis=0)
        print(
            f"{name}: {(abs(ratios - 1) <= 0.02).sum()} of {len(cases)} cases within 2 %, "
            f"{((low <= 1) & (high >= 1)).sum()} intervals contain 1, "
            f"{((low >= 0.98) & (high <= 1.02)).sum()} lie within 2 %; "
            f"sum {ratio(one.sum(), two.sum(), ones.sum(axis=1), twos.sum(axis=1))}; fetching "
            + ratio(
                one[fetching].sum(), two[fetching].sum(),
                ones[:, fetching].sum(axis=1), twos[:, fetching].sum(axis=1),
            )
        )  # fmt: skip
    for place, (budget, who, cap) in enumerate(cases):
        cells = [
            ratio(one[place], two[place], ones[:, place], twos[:, place])
            for (_, one, ones), (_, two, twos) in zip(views(gpu), views(cpu), strict=True)
        ]
        print(
            f"| {budget:,} | {who} | {shown(budget, cap)} | " + " | ".join(cells)
            + f" | {typical_step(texts, place):.3f} |"
        )  # fmt: skip
    deviations(cases, gpu, cpu)
    single_texts(texts, gpu, cpu)


def single_texts(texts: dict[str, LongText], gpu: dict[str, Sums], cpu: dict[str, Sums]) -> None:
    """Print the spread of ratios of single texts, and which one moves each distant case most."""
    cases = next(iter(texts.values())).cases
    ratios = np.concatenate([one.kl / cpu[name].kl for name, one in gpu.items()])
    low, high = np.quantile(ratios, [0.05, 0.95])
    print(f"{ratios.size} pairs: {(ratios > 1).sum()} above 1, 90 % in {low:.3f} to {high:.3f}")
    whole = together([one.mean for one in gpu.values()]) / together([s.mean for s in cpu.values()])
    for place in np.flatnonzero(np.abs(whole - 1) > 0.02):
        without = {}
        for name in texts:
            for left_out in range(len(gpu[name].kl)):
                means = []
                for side in (gpu, cpu):
                    kept = {key: each.mean[place] for key, each in side.items()}
                    rest = np.delete(side[name].kl[:, place], left_out).sum()
                    kept[name] = rest / np.delete(side[name].steps, left_out).sum()
                    means.append(np.mean(list(kept.values())))
                without[name, left_out] = float(means[0] / means[1])
        (name, seed), value = min(without.items(), key=lambda each: abs(each[1] - 1))
        print(f"   {cases[place]}: {whole[place]:.3f}, without {name} {seed} {value:.3f}")


def typical_step(texts: dict[str, LongText], case: int) -> float:
    """Return the median over steps of KL on the GPU over KL on the CPU."""
    logs = []
    for text in texts.values():
        for seed in text.seeds:
            gpu, cpu = paired("alone", seed), paired("cpu", seed)
            if gpu is not None and cpu is not None:
                logs.append(np.log((gpu[case] + UNIT) / (cpu[case] + UNIT)))
    return float(np.exp(np.median(np.concatenate(logs))))


def deviations(cases: list[Case], gpu: dict[str, Sums], cpu: dict[str, Sums]) -> None:
    """Print how far the most distant ratio of a prompt's case is from 1, all looked at together."""
    names, sizes, draws = [], [], []
    for name, one in gpu.items():
        logs = np.log(one.means / cpu[name].means)
        centre = np.log(one.mean / cpu[name].mean)
        spread = logs.std(axis=0)
        names += [f"{name} {case}" for case in cases]
        sizes.append(np.abs(centre) / spread)
        draws.append((np.abs(logs - centre) / spread).max(axis=1))
    size, largest = np.concatenate(sizes), np.max(draws, axis=0)
    print(f"{len(size)} ratios; {(size > 1.96).sum()} beyond 1.96 deviations")
    for place in np.argsort(-size)[:3]:
        chance = (largest >= size[place]).mean()
        print(f"   {names[place]}: {size[place]:.2f} deviations, by chance somewhere {chance:.0%}")


def shown(budget: int, cap: int) -> str:
    """Return a cap as the fetch ratios that it stands for."""
    by_cap: dict[int, list[str]] = {}
    chosen = BLOCKS[budget] - 3
    for value in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0):
        blocks = min(int(value * BLOCKS[budget] + 1e-9), chosen)
        by_cap.setdefault(blocks, []).append("all" if value == 1.0 else f"{value:g}")
    return f"{', '.join(by_cap[cap])} ({cap})"


def line(cases: list[Case], budget: int, who: str) -> list[int]:
    """Return the places of a budget's and predictor's cases, by rising cap."""
    found = [place for place, case in enumerate(cases) if case[:2] == (budget, who)]
    if who == "previous":
        found += [place for place, case in enumerate(cases) if case == (budget, "draft", 0)]
    return sorted(found, key=lambda place: cases[place][2])


def by_ratio(texts: dict[str, LongText], run: str) -> None:
    """Print KL by ratio, whether it may fall all the way, and steps up."""
    cases = next(iter(texts.values())).cases
    tested: list[tuple[str, float, Values]] = []
    for name, mean, means in views(sums(texts, lambda seed: of_run(run, seed))):
        low, high = np.percentile(means, [2.5, 97.5], axis=0)
        for budget in BLOCKS:
            for who in ("draft", "previous"):
                places = line(cases, budget, who)
                cells = [f"{mean[p]:.4f} [{low[p]:.4f}, {high[p]:.4f}]" for p in places]
                falls = (low[places] <= np.minimum.accumulate(high[places])).all()
                print(f"| {name} | {budget:,} | {who} | " + " | ".join(cells) + f" | {falls} |")
                for one, two in pairwise(places):
                    rise = means[:, two] - means[:, one]
                    size, spread = mean[two] - mean[one], rise.std()
                    title = (
                        f"{name} {budget} {who} {cases[one][2]}->{cases[two][2]}: {size:+.4f} "
                        f"[{np.percentile(rise, 2.5):+.4f}, {np.percentile(rise, 97.5):+.4f}]"
                    )
                    if name != "all":
                        tested.append((title, size / spread, (rise - size) / spread))
                    elif size > 0:
                        print(f"   up: {title}")
    largest = np.sort(np.max([draws for _, _, draws in tested], axis=0))
    print(f"{len(tested)} neighbouring ratios; largest deviation of all: 5 % above "
          f"{np.quantile(largest, 0.95):.2f}")  # fmt: skip
    for title, size, _ in sorted(tested, key=lambda each: -each[1])[:5]:
        print(
            f"   {title}: {size:.2f} deviations, by chance somewhere {(largest >= size).mean():.0%}"
        )


def against_previous(texts: dict[str, LongText], run: str) -> None:
    """Print KL with the draft over KL with the previous token, also by what the draft was."""
    cases = next(iter(texts.values())).cases
    whole = sums(texts, lambda seed: of_run(run, seed))
    split = [sums(texts, partial(followed, run, kind)) for kind in (True, False)]
    for place, (budget, who, cap) in enumerate(cases):
        if who != "previous":
            continue
        draft = cases.index((budget, "draft", cap))
        cells = [
            ratio(mean[draft], mean[place], means[:, draft], means[:, place])
            for found in (whole, *split)
            for _, mean, means in (views(found) if found is whole else [next(views(found))])
        ]
        print(f"| {budget:,} | {shown(budget, cap)} | " + " | ".join(cells) + " |")


def followed(run: str, accepted: bool, seed: Seed) -> Values | None:
    """Return the KL of the steps after an accepted draft, or after a rejected one."""
    found = of_run(run, seed)
    if found is None:
        return None
    return found[:, seed.after_accepted[1 : 1 + found.shape[1]] == accepted]


if __name__ == "__main__":
    main()
