"""CSV as every spreadsheet reads it: UTF-8, plain line feeds, no formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oasis_sim.metrics import Table
from oasis_sim.text import csv_cell


def write_table(table: Table) -> str:
    """Return a table as CSV text with a header line; None is an empty cell."""
    return write_rows([table.header, *table.rows()])


def write_rows(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV text, with texts made harmless."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def write_summary(summary: Mapping[str, Any]) -> str:
    """Return a summary as `metric,value` lines; the metric is the dotted path of its key."""
    return write_rows([("metric", "value"), *flatten(summary)])


def flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of nested mappings and lists with their dotted paths, in order."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for key, item in items for leaf in flatten(item, f"{path}.{key}" if path else key)]


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return csv_cell(value) if isinstance(value, str) else value
