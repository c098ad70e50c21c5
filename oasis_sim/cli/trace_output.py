"""How the trace commands print: tables that name the trace, JSON, CSV."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.fileio import printable

if TYPE_CHECKING:
    from oasis_sim.trace import AttentionTrace

DECIMALS = 4


def short_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for people: each metric and its largest deviation in one narrow cell."""
    cells: dict[str, Any] = {
        "budget": row["budget_tokens"],
        "predictor": row["predictor"],
        "ratio": f"{row['fetch_ratio']:g}",
        "axis": row["axis"],
        "kept": f"{row['kept']} of {row['of']}",
        "samples": row["samples"],
    }
    for key, deviation in row.items():
        name = key.removesuffix("_max_deviation")
        if name != key:
            cells[name] = None if deviation is None else f"{row[name]:.3f} ±{deviation:.3f}"
    return cells


def emit(
    output_format: str,
    document: Mapping[str, Any] | Sequence[Any],
    rows: Sequence[Sequence[Any]],
    about: AttentionTrace | None,
) -> None:
    """Print one result; a table about a trace is headed by its name and origin."""
    if output_format == "json":
        from oasis_sim.report.directory import json_text

        sys.stdout.write(json_text(document))
    elif output_format == "csv":
        from oasis_sim.report.csvfile import write_rows

        named = rows if about is None else _with_origin(rows, about)
        sys.stdout.write(write_rows(named))
    else:
        from oasis_sim.report.table import print_rows

        if about is not None:
            click.echo(f"{printable(about.name)} ({about.origin} trace)")
        print_rows([[_shown(cell) for cell in row] for row in rows], sys.stdout)


def _with_origin(rows: Sequence[Sequence[Any]], about: AttentionTrace) -> list[Sequence[Any]]:
    """Add the trace and its origin to each row, so that no copied line loses them."""
    header, *body = rows
    return [
        ("trace", "origin", *header),
        *((about.name, about.origin, *row) for row in body),
    ]


def _shown(value: Any) -> str:
    """Return a cell for people."""
    if value is None:
        return "-"
    return f"{value:.{DECIMALS}f}" if isinstance(value, float) else str(value)
