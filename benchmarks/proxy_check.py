"""How well a trace predicts a sparse decode: open-loop statistics beside the closed loop.

    python benchmarks/proxy_check.py MODEL [TRACE ...] --out validation/quality-proxy-NAME.json
    python benchmarks/proxy_check.py --error-file | --table

MODEL is the model of some shipped recordings; TRACE names of them (default: all of that model).
For each recording its tokens are decoded once more, with the working set of
``oasis-sim trace stats`` (one sink block, two newest blocks, in the budget), and the numbers of the
recorded layers are put beside those of the trace. Needs the extra ``record`` and about two minutes
per recording. ``--error-file`` folds all results under ``validation/`` into
``oasis_sim/metrics/proxy_error.json``: the error that ``oasis-sim run`` shows beside its proxies.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from quality_smollm2 import working_set_scheme

from oasis_sim.quality import CaseQuality, QualityOptions, measure_quality, vary_scheme
from oasis_sim.record import (
    ProgressLines,
    Prompt,
    PromptRequest,
    RecordedModel,
    RecordOptions,
    build_prompt,
    load_recorded_model,
    load_text,
)
from oasis_sim.residency.stats import trace_stats
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.trace.part import select_part

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "traces"
RESULTS = "validation/quality-proxy-*.json"
ERROR_FILE = ROOT / "oasis_sim" / "metrics" / "proxy_error.json"
BUDGETS = (512, 1024)
CASES = {"draft": (0.0, 0.05, 1.0), "previous": (1.0,)}
"""Fetch ratios by predictor; without fetching, predictors do not matter."""

COMPARED = ("needed", "admitted", "overlap", "attention_mass")


def main() -> None:
    """Check recordings and write what they amount to, or fold earlier results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("traces", nargs="*", help="names of shipped recordings")
    parser.add_argument("--steps", type=int, default=32, help="first steps of each recording")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON, too")
    parser.add_argument("--error-file", action="store_true")
    parser.add_argument("--table", action="store_true", help="print all results as Markdown")
    arguments = parser.parse_args()
    if arguments.error_file:
        ERROR_FILE.write_text(json.dumps(fold(results()), indent=2) + "\n", encoding="utf-8")
        return
    if arguments.table:
        for found in results():
            for each in found["recordings"]:
                markdown(each)
        return
    model = load_recorded_model(arguments.model)
    checks = []
    for trace in recordings(model, arguments.traces):
        checks.append(check(model, trace, min(arguments.steps, trace.steps)))
        show(checks[-1])
        if arguments.out is not None:
            found = {**about(arguments), "model": model.header(), "recordings": checks}
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return command, date and commit."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    named = " ".join([arguments.model.name, *arguments.traces, "--steps", str(arguments.steps)])
    return {
        "command": f"python benchmarks/proxy_check.py {named}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": done.stdout.strip(),
    }


def recordings(model: RecordedModel, names: Sequence[str]) -> Iterable[AttentionTrace]:
    """Load the shipped recordings of a model one by one, all or those named."""
    for path in sorted(TRACES.glob("*.npz")):
        if names and path.stem not in names:
            continue
        trace = load_trace(path)
        if trace.meta["model"].get("sha256") == model.sha256:
            yield trace


def results() -> list[dict[str, Any]]:
    """Read all results that were written so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob(RESULTS))]


def fold(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the largest error of each proxy over all recordings, and how lost mass ranks KL."""
    checks = [check for each in found for check in each["recordings"]]
    ranks = [check["spearman_open_lost_mass_kl"] for check in checks]
    within = [rank for check in checks for rank in check["spearman_within_budget"].values()]
    return {
        "origin": RESULTS,
        "date": max(each["date"] for each in found),
        "models": sorted({each["model"]["name"] for each in found}),
        "recordings": [check["trace"] for check in checks],
        "steps": sum(check["steps"] for check in checks),
        "largest_error": {
            name: max(check["largest_distance"][name] for check in checks) for name in COMPARED
        },
        "rank_of_lost_mass_with_kl": {"low": min(ranks), "high": max(ranks)},
        "rank_within_one_budget": {"low": min(within), "high": max(within)},
    }


def check(model: RecordedModel, trace: AttentionTrace, steps: int) -> dict[str, Any]:
    """Decode the recorded tokens sparsely; return the rows of both loops."""
    scheme = working_set_scheme()
    schemes = [
        each
        for predictor, ratios in CASES.items()
        for each in vary_scheme(scheme, BUDGETS, ratios, [predictor])
    ]
    decode = RecordOptions(
        steps=steps,
        trajectory="text",
        drafters=(trace.drafters[0],),
        draft_budget_tokens=trace.block_tokens,
    )
    prompt = recorded_prompt(model, trace)
    options = QualityOptions(decode, free_run=False)
    result = measure_quality(model, prompt, schemes, options, ProgressLines(sys.stderr))
    opened = select_part(trace, steps=slice(0, steps))
    rows = [compare(opened, case) for case in result.cases]
    return {"trace": trace.name, "steps": steps, **summary(rows), "rows": rows}


def recorded_prompt(model: RecordedModel, trace: AttentionTrace) -> Prompt:
    """Return the prompt of a recording, followed by the tokens that were decoded."""
    about = trace.meta["text"]
    text = TRACES / "texts" / about["name"]
    question = about.get("question")
    tokens = None if question else int(trace.meta["prompt_tokens"])
    source = load_text(text, about["licence"])
    request = PromptRequest(tokens=tokens, question=question)
    prompt = build_prompt(model.tokenizer, source, request, 0)
    if len(prompt.tokens) != int(trace.meta["prompt_tokens"]):
        sys.exit(f"{trace.name}: {text.name} is not the recorded prompt")
    return Prompt(prompt.tokens, tuple(trace.token.tolist()), prompt.header)


def compare(trace: AttentionTrace, case: CaseQuality) -> dict[str, Any]:
    """Return one row: the trace's statistics, the closed loop in the same layers, and its KL."""
    facts = case.facts()
    row = trace_stats(
        trace, [facts["budget_tokens"]], [facts["fetch_ratio"]], [facts["predictor"]]
    )[0]
    ids = trace.meta["layer_ids"]
    layers = [layer for layer in case.layers if layer.layer in ids]
    closed = {name: float(np.mean([getattr(layer, name) for layer in layers])) for name in COMPARED}
    return {
        **{name: facts[name] for name in ("budget_tokens", "predictor", "fetch_ratio")},
        "open": {name: getattr(row, name) for name in COMPARED},
        "closed": closed,
        "closed_mass_all_layers": case.estimates["attention_mass"].mean,
        "kl": case.estimates["kl"].to_json(),
        "nll_difference": case.estimates["nll_difference"].to_json(),
        "top1_agreement": case.estimates["top1_agreement"].mean,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the largest distance of each number, and how lost mass ranks with KL."""
    distance = {
        name: max(abs(row["open"][name] - row["closed"][name]) for row in rows) for name in COMPARED
    }
    kl = [row["kl"]["mean"] for row in rows]
    return {
        "largest_distance": distance,
        "spearman_open_lost_mass_kl": spearman(
            [-row["open"]["attention_mass"] for row in rows], kl
        ),
        "spearman_closed_lost_mass_kl": spearman(
            [-row["closed_mass_all_layers"] for row in rows], kl
        ),
        "spearman_open_missed_overlap_kl": spearman([-row["open"]["overlap"] for row in rows], kl),
        "spearman_within_budget": {
            str(budget): spearman(
                [-row["open"]["attention_mass"] for row in rows if row["budget_tokens"] == budget],
                [row["kl"]["mean"] for row in rows if row["budget_tokens"] == budget],
            )
            for budget in BUDGETS
        },
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation of values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def show(found: dict[str, Any]) -> None:
    """Print a recording's rows and summary."""
    print(f"{found['trace']}, {found['steps']} steps; open loop / closed loop")
    for row in found["rows"]:
        pairs = "  ".join(
            f"{name} {row['open'][name]:.3f}/{row['closed'][name]:.3f}" for name in COMPARED
        )
        kl = row["kl"]
        print(
            f"  {row['budget_tokens']:>5} {row['predictor']:<8} {row['fetch_ratio']:<5g} {pairs}  "
            f"KL {kl['mean']:.4f} [{kl['low']:.4f}, {kl['high']:.4f}]"
        )
    for name, value in found.items():
        if name not in {"trace", "steps", "rows"}:
            print(f"  {name}: {json.dumps(value)}")
    print(flush=True)


def markdown(found: dict[str, Any]) -> None:
    """Print a recording's rows for docs/quality.md."""
    for row in found["rows"]:
        ratio = "all" if row["fetch_ratio"] == 1.0 else f"{row['fetch_ratio']:g}"
        pairs = " | ".join(
            f"{row['open'][name]:.3f} / {row['closed'][name]:.3f}"
            for name in ("needed", "overlap", "attention_mass")
        )
        kl = row["kl"]
        print(
            f"| {found['trace']} | {row['budget_tokens']:,} | {row['predictor']} | {ratio} "
            f"| {pairs} | {kl['mean']:.3f} [{kl['low']:.3f}, {kl['high']:.3f}] "
            f"| {row['nll_difference']['mean']:+.3f} | {row['top1_agreement']:.2f} |"
        )
    rank = [f"{value:.2f}" for value in found["spearman_within_budget"].values()]
    print(
        f"{found['trace']}: rank of lost mass with KL {found['spearman_open_lost_mass_kl']:.2f}, "
        f"within a budget {' and '.join(rank)}; of overlap "
        f"{found['spearman_open_missed_overlap_kl']:.2f}; largest distances "
        f"{found['largest_distance']}"
    )


if __name__ == "__main__":
    main()
