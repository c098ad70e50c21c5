"""Results of ``quality_long.py`` as files of their own, one per prompt, and as arrays again.

    python benchmarks/long_results.py FOLDER/long.npz --out validation

writes ``quality-long-TEXT.json``: by seed which drafts were accepted, and by run (cpu, alone,
steered) KL of every case and step and means of the rest. KL is in units of 1e-5 nats.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
TEXTS = ("prose", "code", "question")
RUNS = ("cpu", "alone", "steered")
MEANS = ("top1_agreement", "nll_difference", "mass", "needed", "admitted", "overlap")
UNIT = 1e-5
BEGUN = 16
"""A decode that the end of the time stopped counts from this many steps on."""

Values = NDArray[np.float64]
Case = tuple[int, str, int]  # budget in tokens, predictor, cap in blocks


@dataclass(frozen=True)
class Seed:
    """Hold one drawn text: step s followed an accepted draft, bool [T]; KL [R, S] by run.

    ``means`` by run and name, [R], over the steps 1 .. S - 1.
    """

    number: int
    after_accepted: NDArray[np.bool_]
    kl: dict[str, Values]
    means: dict[str, dict[str, Values]]


@dataclass(frozen=True)
class LongText:
    """Hold the seeds of one prompt."""

    facts: dict[str, Any]
    cases: list[Case]
    seeds: list[Seed]


def main() -> None:
    """Write one file per prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with np.load(arguments.results) as found:
        arrays = {name: found[name] for name in found.files}
    facts = json.loads(str(arrays.pop("facts")))
    for text in TEXTS:
        written = to_json(text, facts, arrays)
        lines = json.dumps(written, separators=(",", ":")).replace('{"seed"', '\n{"seed"')
        place = arguments.out / f"quality-long-{text}.json"
        place.write_text(lines + "\n", encoding="utf-8")


def to_json(text: str, facts: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a prompt's runs."""
    numbers = sorted({int(key.split("/")[0].split("-")[2]) for key in arrays if f"-{text}-" in key})
    seeds = []
    for number in numbers:
        runs = {
            run: named(arrays, f"{run}-{text}-{number}/")
            for run in RUNS
            if f"{run}-{text}-{number}/kl" in arrays
        }
        own = {run: arrays[f"{run}-{text}-{number}/tokens"] for run in runs}
        tokens = next(iter(own.values()))
        drafts = arrays[f"{next(iter(runs))}-{text}-{number}/drafts"]
        accepted = (drafts[: len(tokens) - 1] == tokens[1:]).astype(int)
        seeds.append(
            {
                "seed": number,
                "accepted_by_step": "".join(map(str, accepted)),
                "same_tokens": bool(
                    all(
                        (other[: len(tokens)] == tokens[: len(other)]).all()
                        for other in own.values()
                    )
                ),
                "runs": runs,
            }
        )
    return {**facts, "text": text, "kl_unit_nats": UNIT, "seeds": seeds}


def named(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return one run: KL by case and step, means of the rest."""
    kl = np.rint(arrays[f"{prefix}kl"] / UNIT).astype(int).tolist()
    means = {name: arrays[prefix + name][:, 1:].mean(axis=1) for name in MEANS}
    rounded = {name: [round(float(value), 6) for value in found] for name, found in means.items()}
    return {"seconds": round(float(arrays[f"{prefix}seconds"]), 1), **rounded, "kl_by_step": kl}


def load(text: str, folder: Path = ROOT / "validation") -> LongText:
    """Read a prompt's file; seeds whose runs drew different tokens are left out."""
    found = json.loads((folder / f"quality-long-{text}.json").read_text(encoding="utf-8"))
    seeds = []
    for seed in found["seeds"]:
        if not seed["same_tokens"]:
            continue
        accepted = np.array(list(seed["accepted_by_step"])) == "1"
        runs = {
            run: kept for run, kept in seed["runs"].items() if len(kept["kl_by_step"][0]) >= BEGUN
        }
        seeds.append(
            Seed(
                seed["seed"],
                np.concatenate([[False], accepted[:-1]]),
                {run: np.array(kept["kl_by_step"]) * UNIT for run, kept in runs.items()},
                {run: {name: np.array(kept[name]) for name in MEANS} for run, kept in runs.items()},
            )
        )
    facts = {key: value for key, value in found.items() if key != "seeds"}
    cases = [(int(budget), str(who), int(cap)) for budget, who, cap in found["cases"]]
    return LongText(facts, cases, seeds)


if __name__ == "__main__":
    main()
