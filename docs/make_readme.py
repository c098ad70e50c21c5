"""Renew what the README shows of the program: first table, timeline, errors against the paper.

    python docs/make_readme.py

Run it after a change of results or of the table (about a minute); tests compare most of it. The
picture needs matplotlib (`pip install 'oasis-sim[plot]'`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
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
PUBLISHED = {
    "fig2": "Figure 2: on-demand retrieval, Qwen3-32B (nominal bandwidths)",
    "table2": "Table 2: six fetch ratios, Qwen3-8B",
    "fig11": "Figure 11, 16K context: five systems on Qwen3-8B, two on Qwen3-235B-A22B (8 GPUs)",
}


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
    """Return mean and largest error against each published table and figure."""
    lines = ["| published | numbers | mean error | largest error |", "|---|---|---|---|"]
    for name, title in PUBLISHED.items():
        found = json.loads(oasis_sim("paper", name, "--format", "json"))
        lines.append(accuracy_line(title, found))
    return "\n".join(lines) + "\n"


def accuracy_line(title: str, found: Mapping[str, Any]) -> str:
    """Return the line of one comparison, with the place of its largest error."""
    rows = [row for row in found["rows"] if row["error_pct"] is not None]
    worst = max(rows, key=lambda row: abs(row["error_pct"]))
    keys = [f"{key} {value}" for key, value in worst.items() if key not in NOT_KEYS]
    place = f" ({worst['metric']}; {', '.join(keys)})" if worst["error_pct"] else ""
    largest = f"{abs(worst['error_pct']):.1f} %{place}"
    return f"| {title} | {len(rows)} | {found['mape_pct']:.1f} % | {largest} |"


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
    ]
    return "\n".join(lines) + "\n"


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
