"""Renew what the README shows of the program: first table, timeline, errors against the paper.

    python docs/make_readme.py

Run it after a change of results or of the table (one to two minutes); tests compare most of it. The
picture needs matplotlib (`pip install -e '.[plot]'`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = ("run", "--profile", "h100", "--trace", "aime.jsonl")
NOT_KEYS = {
    "context_tokens",
    "metric",
    "unit",
    "published",
    "simulated",
    "simulated_exact",
    "error_pct",
}
FITTED_TRACE = "the synthetic trace was fitted to it: no test"
ENGINE_FITTED = "calibrated to it, with blocks as the trace moves them"
HOST_MEMORY = ("host_gib_mean", "host_gib_peak")


@dataclass(frozen=True)
class Published:
    """Name a table or figure, which of its metrics count (none: all), and what it tests."""

    name: str
    title: str
    rests_on: str
    metrics: tuple[str, ...] = ()


PUBLISHED = (
    Published(
        "fig2",
        "Figure 2: on-demand retrieval, Qwen3-32B",
        "predicted, from nominal bandwidths alone",
    ),
    Published("fig4", "Figure 4: prediction accuracy, mean and extremes", FITTED_TRACE),
    Published("fig6", "Figure 6: agreement of 128 blocks by layer", FITTED_TRACE),
    Published("table2", "Table 2: six fetch ratios, Qwen3-8B", ENGINE_FITTED),
    Published(
        "fig11",
        "Figure 11, 16K context: five systems on Qwen3-8B, two on Qwen3-235B-A22B (8 GPUs)",
        "calibrated to it",
    ),
    Published(
        "fig12",
        "Figure 12, 24K context, disaggregated: throughput",
        "predicted",
        ("output_tokens_per_s",),
    ),
    Published(
        "fig12", "Figure 12: host memory per request", "predicted", ("host_gib_per_request",)
    ),
    Published("fig12", "Figure 12: host memory of the decode node", "predicted", HOST_MEMORY),
    Published("fig13", "Figure 13: budgets", "predicted; its numbers are not known"),
    Published(
        "fig14",
        "Figure 14: KV sent at admission",
        FITTED_TRACE,
        ("admission_gib",),
    ),
    Published("fig14", "Figure 14: KV fetched later, all misses", "predicted", ("drift_gib",)),
    Published(
        "fig15",
        "Figure 15: first token, full over partial transfer",
        "predicted, with the published prefill time",
    ),
)


def main() -> None:
    """Run the commands and put what they say into the README and its picture."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        table = oasis_sim(*COMMAND, "--out", str(run))
        script = str(ROOT / "docs" / "make_timeline.py")
        picture = str(ROOT / "docs" / "timeline.svg")
        subprocess.run([sys.executable, script, str(run), picture], check=True)
    text = replaced(text, "first run", f"```text\n{table}```\n")
    text = replaced(text, "accuracy", accuracy_table())
    readme.write_text(replaced(text, "validation", validation_table()), encoding="utf-8")


def oasis_sim(*arguments: str) -> str:
    """Return the standard output of a command that must succeed."""
    command = [sys.executable, str(ROOT / "cli.py"), *arguments, "--quiet"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def accuracy_table() -> str:
    """Return mean and largest error against each published table and figure, and what it tests."""
    lines = [
        "| published | numbers | mean error | largest error | basis |",
        "|---|---|---|---|---|",
    ]
    found = {
        name: json.loads(oasis_sim("paper", name, "--format", "json"))["rows"]
        for name in dict.fromkeys(each.name for each in PUBLISHED)
    }
    lines += [accuracy_line(each, found[each.name]) for each in PUBLISHED]
    return "\n".join(lines) + "\n"


def accuracy_line(published: Published, found: Sequence[Mapping[str, Any]]) -> str:
    """Return the line of one comparison, with the place of its largest error."""
    rows = [
        row
        for row in found
        if row["error_pct"] is not None
        and (not published.metrics or row["metric"] in published.metrics)
    ]
    if not rows:
        return f"| {published.title} | 0 | - | - | {published.rests_on} |"
    worst = max(rows, key=lambda row: abs(row["error_pct"]))
    keys = [f"{key} {value}" for key, value in worst.items() if key not in NOT_KEYS]
    if len({row["metric"] for row in rows}) > 1:
        keys.insert(0, worst["metric"])
    place = f" ({', '.join(keys).replace('_', ' ')})"
    largest = f"{worst['error_pct']:+.1f} %{place}" if worst["error_pct"] else "0.0 %"
    mean = sum(abs(row["error_pct"]) for row in rows) / len(rows)
    return f"| {published.title} | {len(rows)} | {mean:.1f} % | {largest} | {published.rests_on} |"


def validation_table() -> str:
    """Return the step times of the committed validation on a real card, beside the simulated."""
    found = json.loads((ROOT / "validation" / "h200.json").read_text(encoding="utf-8"))
    lines = [
        "| batch | context | scheme | fetch ratio | block | budget | transport "
        "| simulated ms | measured ms | spread | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if row["metric"] == "step_time":
            lines.append(validation_line(row))
    summary = found["summary"]
    lines += [
        "",
        f"Median absolute error {summary['step_time_median_abs_error_pct']:.1f} %, largest "
        f"{summary['step_time_max_abs_error_pct']:.1f} % over {summary['configs']} configurations "
        f"({found['gpu']}, driver {found['driver']}, {found['date'][:10]}; "
        "`validation/h200.json`).",
        *stage_table(summary.get("stages", {})),
    ]
    return "\n".join(lines) + "\n"


def stage_table(stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the errors of each stage, if the file has them."""
    if not stages:
        return []
    lines = [
        f"| {name.replace('_', ' ')} | {found['rows']} | {found['median_abs_error_pct']:.1f} % "
        f"| {found['max_abs_error_pct']:.1f} % |"
        for name, found in stages.items()
    ]
    return ["", "| stage | configurations | median error | largest |", "|---|---|---|---|", *lines]


def validation_line(row: Mapping[str, Any]) -> str:
    """Return one configuration as a line of the table."""
    case = row["config"]
    sparse = case["scheme"] != "dense"
    ratio = case["fetch_ratio"]
    parts = (ratio, case["block_tokens"], case["budget_tokens"], case["transport"])
    cells = [case["batch"], f"{case['context_tokens']:,}", case["scheme"]]
    cells += parts if sparse else ["-"] * len(parts)
    cells += [f"{row['simulated']:.2f}", f"{row['measured']:.2f}", f"{row['spread_pct']:.1f} %"]
    return "| " + " | ".join(map(str, (*cells, f"{row['error_pct']:+.1f} %"))) + " |"


def replaced(text: str, name: str, content: str) -> str:
    """Return the README's text with other content between the two marks of a name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}{content}{end}{tail}"


if __name__ == "__main__":
    main()
