"""What the shipped recordings show, beside an independent recording of the same model.

    python benchmarks/recording_check.py [--all-layers FOLDER] [--out validation/recordings.json]

The reference was recorded with another program, on other texts of the same kinds (three prompts of
4,096 tokens, all layers, a drafter that is accepted 70 % of the time). Its numbers are means over
the three texts, and so are those compared with it here. FOLDER holds the three recordings made with
all layers (``--layers all``), which are not shipped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from oasis_sim.residency.stats import trace_stats
from oasis_sim.trace import load_trace

ROOT = Path(__file__).parents[1]
COMPARED = ("smollm2-prose", "smollm2-code", "smollm2-question")
OTHERS = ("smollm2-code8k", "gemma3-270m-prose", "gemma3-270m-code", "gemma3-270m-question")
BUDGETS = (512, 1024, 2048)
REFERENCE = {
    512: {
        "mass_best_set": 0.905,
        "mass_bound_set": 0.853,
        "overlap_previous": 0.736,
        "mass_previous": 0.844,
        "overlap_draft": 0.897,
        "mass_draft": 0.849,
        "new_blocks": 0.265,
    },
    1024: {
        "mass_best_set": 0.953,
        "mass_bound_set": 0.922,
        "overlap_previous": 0.788,
        "mass_previous": 0.914,
        "overlap_draft": 0.918,
        "mass_draft": 0.918,
        "new_blocks": 0.213,
    },
}


def main() -> None:
    """Compute every row, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    parser.add_argument("--all-layers", type=Path, help="folder of recordings of all layers")
    arguments = parser.parse_args()
    rows = [row for name in (*COMPARED, *OTHERS) for row in rows_of(name)]
    folder = arguments.all_layers
    whole = [row for name in COMPARED for row in rows_of(name, folder)] if folder else []
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": "python benchmarks/recording_check.py",
        "reference": REFERENCE,
        "compared": compare(rows),
        "compared_all_layers": compare(whole) if whole else [],
        "rows": rows,
        "rows_all_layers": whole,
    }
    for row in (*rows, *whole):
        print(markdown(row))
    for name in ("compared", "compared_all_layers"):
        for each in found[name]:
            print(f"{name}, K = {each['budget_tokens']}: {each['largest_distance']:.3f}")
            for key, value in each["means"].items():
                print(f"  {key}: {REFERENCE[each['budget_tokens']][key]:.3f} / {value:.3f}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def rows_of(name: str, folder: Path = ROOT / "traces") -> list[dict[str, Any]]:
    """Return a recording's rows, one per budget that its prompt is at least twice."""
    trace = load_trace(folder / f"{name}.npz")
    prompt = int(trace.meta["prompt_tokens"])
    budgets = [budget for budget in (*BUDGETS, 4096) if budget * 2 <= prompt + budget // 2]
    predictors = ["oracle_mass", "current", "previous", "draft"]
    drafter = trace.drafters[0]
    rows = []
    for budget in budgets:
        best, bound, previous, draft = trace_stats(trace, [budget], [1.0], predictors)
        capped = trace_stats(trace, [budget], [0.05], ["draft"])[0]
        rows.append(
            {
                "trace": name,
                "prompt_tokens": prompt,
                "budget_tokens": budget,
                "mass_best_set": best.attention_mass,
                "mass_bound_set": bound.attention_mass,
                "overlap_previous": previous.overlap,
                "mass_previous": previous.attention_mass,
                "overlap_draft": draft.overlap,
                "mass_draft": draft.attention_mass,
                "overlap_draft_cap_0.05": capped.overlap,
                "mass_draft_cap_0.05": capped.attention_mass,
                "new_blocks": bound.new_blocks,
                "drafter": drafter,
                "accepted": float(trace.accepted[drafter].mean()),
                "perplexity": trace.meta["text"]["perplexity"],
            }
        )
    return rows


def markdown(row: dict[str, Any]) -> str:
    """Return a row of the table in docs/recording.md."""
    pairs = [
        f"{row[f'overlap_{name}']:.3f} / {row[f'mass_{name}']:.3f}"
        for name in ("previous", "draft", "draft_cap_0.05")
    ]
    best, bound = (f"{row[f'mass_{name}_set']:.3f}" for name in ("best", "bound"))
    cells = [row["trace"], f"{row['budget_tokens']:,}", best, bound, *pairs]
    return f"| {' | '.join([*cells, format(row['new_blocks'], '.3f')])} |"


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the means over the three texts beside the reference, by budget."""
    compared = []
    for budget, expected in REFERENCE.items():
        chosen = [r for r in rows if r["budget_tokens"] == budget and r["trace"] in COMPARED]
        means = {key: float(np.mean([row[key] for row in chosen])) for key in expected}
        distance = {key: means[key] - expected[key] for key in expected}
        compared.append(
            {
                "budget_tokens": budget,
                "means": means,
                "distance": distance,
                "largest_distance": max(map(abs, distance.values())),
            }
        )
    return compared


def commit() -> str:
    """Return the commit of the working tree."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
