"""The table of a sweep: one row per point, one column per option and per number."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oasis_sim.errors import UsageError
from oasis_sim.plan.grid import PLAIN_NUMBER
from oasis_sim.plan.outcome import Outcome
from oasis_sim.report.csvfile import flatten, write_rows

DONE, REFUSED, MISSING = "done", "refused", "missing"
LEFT_OUT = ("schema_version", "oasis_sim_version", "notes")


@dataclass(frozen=True)
class Row:
    """Hold one point: what was varied (None where an option means nothing), and its outcome."""

    point: Mapping[str, str | None]
    key: str
    outcome: Outcome | None

    @property
    def status(self) -> str:
        """Return `done`, `refused` (it does not fit) or `missing` (not simulated yet)."""
        if self.outcome is None:
            return MISSING
        return REFUSED if self.outcome.summary is None else DONE

    def cells(self) -> dict[str, Any]:
        """Return the row by column: the point, what became of it, then every number."""
        refusal = None if self.outcome is None else self.outcome.refusal
        found: dict[str, Any] = {name: typed(text) for name, text in self.point.items()}
        found |= {"run": self.key, "status": self.status}
        found["refusal"] = refusal
        if self.outcome is not None and self.outcome.summary is not None:
            kept = {k: v for k, v in self.outcome.summary.items() if k not in LEFT_OUT}
            found |= dict(flatten(kept))
        return found


def typed(text: str | None) -> str | int | float | None:
    """Return the value of an option as a number where it is one (grids spell them one way)."""
    if text is None or not PLAIN_NUMBER.fullmatch(text):
        return text
    return int(text) if text.isdecimal() else float(text)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of all rows in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: Sequence[Row]) -> str:
    """Return the table as CSV, with a header even where there are no rows."""
    cells = [row.cells() for row in rows]
    names = columns(cells)
    return write_rows([names, *([row.get(name) for name in names] for row in cells)])


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    """Return the table as Parquet; raise UsageError without pyarrow (the extra `parquet`)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow: pip install -e '.[parquet]' (results.csv holds the same)"
        ) from None
    cells = [row.cells() for row in rows]
    names = columns(cells)
    table = pyarrow.table({name: _column([row.get(name) for row in cells]) for name in names})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: numbers that are whole in some rows only become floats."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values
