"""Comparisons and other rows on standard output: table, JSON or CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from oasis_sim.paper.comparison import Comparison
from oasis_sim.report.csvfile import write_rows
from oasis_sim.report.directory import json_text
from oasis_sim.report.numbers import gigabytes, number
from oasis_sim.report.table import print_rows
from oasis_sim.text import one_line

KEY_COLUMNS = (
    "fetch_ratio",
    "attended_tokens",
    "batch",
    "budget_blocks",
    "context_tokens",
    "concurrency",
    "layer",
)
HEADINGS = {
    "attended_tokens": "attended",
    "budget_blocks": "budget",
    "context_tokens": "context",
    "simulated_exact": "exact",
    "error_pct": "error",
    "kv_bytes_per_token": "KV/token",
    "intensity_tokens_per_gb": "token/GB",
    "bandwidth_gb_per_s": "GB/s",
    "batch_max": "batch",
    "tpot_min_ms": "least TPOT ms",
    "output_tokens_per_s_max": "tok/s at most",
    "with_prefill_tokens_per_s": "with prefill",
    "critical_path": "critical",
    "serial_ms": "serial ms",
    "serial_share_pct": "%",
    "simulated_ms": "simulated ms",
    "simulated_share_pct": "%",
}


def write_comparisons(found: Sequence[Comparison], output_format: str, stream: IO[str]) -> None:
    """Write comparisons as tables with their notes, or as one CSV of all their columns."""
    if output_format == "csv":
        rows = [
            {"name": comparison.name, **row.to_json()}
            for comparison in found
            for row in comparison.rows
        ]
        stream.write(_csv(rows))
        return
    for index, comparison in enumerate(found):
        mean = comparison.mape_pct
        error = "" if mean is None else f"; mean absolute error {mean:.1f} %"
        gap = "\n" if index else ""
        stream.write(f"{gap}{comparison.title}{error}\n\n")
        known = [row for row in comparison.rows if (row.published, row.simulated) != (None, None)]
        _write_table([row.to_json() for row in known or comparison.rows], stream)
        stream.write("\n")
        if known and len(known) < len(comparison.rows):
            left = len(comparison.rows) - len(known)
            stream.write(f"- rows without any number, in JSON and CSV only: {left}\n")
        for text in comparison.notes:
            stream.write(f"- {one_line(text)}\n")


def write_rows_under(
    heading: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    output_format: str,
    stream: IO[str],
    legend: str,
) -> None:
    """Write rows under what they were computed for; CSV repeats it in every line.

    A table has the legend of its columns beside it; JSON and CSV carry bytes and plain keys.
    """
    if output_format == "json":
        stream.write(json_text({**heading, "rows": list(rows)}))
    elif output_format == "csv":
        stream.write(_csv([{**heading, **row} for row in rows]))
    else:
        parts = [_described(key, value) for key, value in heading.items() if key != "name"]
        stream.write(f"{one_line(', '.join(parts))}\n{legend}\n\n")
        _write_table(rows, stream)


def _described(key: str, value: Any) -> str:
    """Return an input with its name, a whole number with separated thousands."""
    return f"{key.replace('_', ' ')} {f'{value:,}' if isinstance(value, int) else value}"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a column that a row does not have is an empty cell."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    return write_rows([header, *([row.get(key) for key in header] for row in rows)])


def _write_table(rows: Sequence[Mapping[str, Any]], stream: IO[str]) -> None:
    header = list(rows[0])
    cells = [[_shown(key, row[key]) for key in header] for row in rows]
    print_rows([[HEADINGS.get(key, key) for key in header], *cells], stream)


def _shown(key: str, value: Any) -> str:
    """Return a value as a table shows it; key columns are shown as they were given."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if key in KEY_COLUMNS and value is not None:
        return str(value)
    if key == "error_pct" and value is not None:
        return f"{value:+.1f} %"
    if key == "kv_bytes_per_token":
        return gigabytes(value)
    return number(value) if value is None or isinstance(value, int | float) else str(value)
