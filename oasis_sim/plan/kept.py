"""Read the table of a sweep back from its directory, and believe it only as far as its runs do.

The rows say which run belongs to which point; every number comes from the hashed runs. Written
again from them, the table must be the same text, and its points must be those of sweep.yaml.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from oasis_sim.errors import InputError
from oasis_sim.fileio import inside, printable, read_bytes
from oasis_sim.plan.grid import Grid, read_grid
from oasis_sim.plan.outcome import Outcome
from oasis_sim.plan.store import GRID_NAME, RUNS_NAME, Store
from oasis_sim.plan.table import DONE, MISSING, REFUSED, Row, csv_text, typed
from oasis_sim.report.csvfile import write_rows
from oasis_sim.report.rundir import read_summary
from oasis_sim.units import MIB

TABLE_NAMES = ("results.csv", "results.partial.csv")
TABLE_CAP_BYTES = 256 * MIB
FIX = "run the sweep again"


def kept_rows(directory: Path) -> list[Row]:
    """Return the rows of a sweep's table, whole or partial, with their outcomes.

    Raise InputError when there is no table, a run that it names is not whole, or it says anything
    else than sweep.yaml and the runs.
    """
    grid = read_grid(str(directory / GRID_NAME), lambda _name, _text: None)
    path = next((each for each in (directory / n for n in TABLE_NAMES) if each.is_file()), None)
    if path is None:
        raise InputError(f"has no {TABLE_NAMES[0]}", file=printable(directory), fix=FIX)
    text = _decoded(path)
    reader = csv.DictReader(io.StringIO(text), restval="")
    wanted = [*grid.vary, "run", "status", "refusal"]
    if list(reader.fieldnames or [])[: len(wanted)] != wanted:
        problem = f"does not begin with the columns {', '.join(wanted)}"
        raise InputError(problem, file=printable(path), line=1, fix=FIX)
    try:
        rows = [_row(directory, grid, cells, f"{path}:{reader.line_num}") for cells in reader]
    except csv.Error as error:
        raise InputError(f"is no CSV ({error})", file=printable(path), fix=FIX) from None
    if csv_text(rows) != text:
        line = _first_difference(csv_text(rows), text)
        raise InputError("is not what its runs say", file=printable(path), line=line, fix=FIX)
    _check_points(grid, rows, path)
    return rows


def _decoded(path: Path) -> str:
    try:
        return read_bytes(path, TABLE_CAP_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=printable(path), fix=FIX) from None


def _row(directory: Path, grid: Grid, cells: Mapping[str, str], place: str) -> Row:
    """Return one row: its labels as sweep.yaml spells them, its outcome from its run."""
    labels: dict[str, str | None] = {}
    for name, values in grid.vary.items():
        spelt = {write_rows([[typed(text)]]).strip(): text for text in values}
        cell = cells[name]
        known = spelt.get(write_rows([[cell]]).strip())
        if cell and known is None:
            problem = f"{printable(cell, 40)!r} is no value of {GRID_NAME}"
            raise InputError(problem, file=printable(place), field=name, fix=FIX)
        labels[name] = known if cell else None
    return Row(labels, cells["run"], _outcome(directory, cells, place))


def _outcome(directory: Path, cells: Mapping[str, str], place: str) -> Outcome | None:
    """Return what the run of a row holds, None where it is said to be missing."""
    key, status = cells["run"], cells["status"]
    if status == MISSING:
        return None
    if status == DONE:
        try:
            return Outcome(read_summary(inside(directory / RUNS_NAME, key)))
        except InputError as error:
            raise InputError(
                error.problem, file=error.file, line=error.line, field=error.field, fix=FIX
            ) from None
    refused = Store(directory).load(key) if status == REFUSED and key.isalnum() else None
    if refused is None:
        problem = f"{printable(status, 40)!r} is not what became of run {printable(key, 40)}"
        raise InputError(problem, file=printable(place), field="status", fix=FIX)
    return refused


def _first_difference(one: str, other: str) -> int:
    """Return the number of the first line that differs."""
    pairs = zip(one.splitlines(), other.splitlines(), strict=False)
    same = [number for number, (a, b) in enumerate(pairs, start=1) if a != b]
    return same[0] if same else 1 + min(len(one.splitlines()), len(other.splitlines()))


def _check_points(grid: Grid, rows: list[Row], path: Path) -> None:
    """Raise InputError unless the rows are the points of the grid, each once.

    An option that means nothing to a point is left out of it (None).
    """
    known = {tuple(row.point.values()) for row in rows}
    patterns = {tuple(value is not None for value in labels) for labels in known}
    seen = set()
    for point in grid.points():
        values = tuple(point.values())
        fitting = {
            tuple(v if kept else None for v, kept in zip(values, pattern, strict=True))
            for pattern in patterns
        }
        if not fitting & known:
            name = ", ".join(f"{key} {value}" for key, value in point.items())
            problem = f"has no row for {printable(name, 120)}"
            raise InputError(problem, file=printable(path), fix=FIX)
        seen |= fitting & known
    if len(rows) > len(known) or known - seen:
        raise InputError(
            f"has a row twice or one that {GRID_NAME} lacks", file=printable(path), fix=FIX
        )
