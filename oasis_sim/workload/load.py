"""Read request files: every row is used, dropped with a counted warning, or refused."""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import TextLines, did_you_mean, loads_json, open_text_lines, printable
from oasis_sim.units import GIB, MIB, PS_PER_S
from oasis_sim.workload.formats import (
    FORMATS,
    BadValueError,
    RequestFormat,
    cell_number,
    tokens,
)
from oasis_sim.workload.workload import LARGEST_ARRIVAL_PS, LARGEST_REQUESTS, Workload

_FILE_CAP_BYTES = 4 * GIB
_LINE_CAP_BYTES = 16 * MIB
_NAMED_FIELDS = 5
_COUNTED_FIELDS = 1000
_BLANK_LINES = 1000

Row = dict[str, Any]
IntColumn: TypeAlias = "array[int]"


def load_workload(path: str | Path, format_name: str) -> Workload:
    """Read the requests of a file in a named format: a key of FORMATS.

    The first request arrives at 0 and requests are put in order of arrival. Raise InputError
    with file, line and field for the first row that cannot be used, UsageError for an unknown
    format.
    """
    if format_name not in FORMATS:
        known = ", ".join(FORMATS)
        guess = did_you_mean(format_name, list(FORMATS))
        raise UsageError(
            f"no request format {printable(format_name, 40)!r}; use one of {known}{guess}"
        )
    return _Reader(path, format_name).read()


class _Reader:
    """Read one file and count what needs a warning."""

    def __init__(self, path: str | Path, format_name: str) -> None:
        self._file = printable(path)
        self._format_name = format_name
        self._format = FORMATS[format_name]
        self._lines = open_text_lines(path, _FILE_CAP_BYTES, _LINE_CAP_BYTES)
        self._known = frozenset(self._format.needed) | self._format.others
        self._unknown: Counter[str] = Counter()
        self._rows_with_unknown = 0
        self._rows_over_hashed = 0
        self._hashed = False
        self._failed = 0

    def read(self) -> Workload:
        """Read all rows and put them in order of arrival."""
        base, columns = self._columns()
        if not columns[0]:
            raise InputError("holds no requests", file=self._file, fix="nothing to simulate")
        table = np.array([np.frombuffer(column, dtype=np.int64) for column in columns])
        first = int(table[0].min())
        if int(table[0].max()) - first > LARGEST_ARRIVAL_PS:
            raise self._too_long()
        order = np.argsort(table[0], kind="stable")
        is_sorted = bool((np.diff(order) > 0).all())
        return Workload(
            name=printable(Path(self._file).name, 80),
            format=self._format_name,
            arrival_ps=table[0, order] - first,
            prompt_tokens=table[1, order],
            output_tokens=table[2, order],
            time_unit=self._format.time_unit,
            warnings=tuple(self._warnings(not is_sorted, base + first)),
        )

    def _columns(self) -> tuple[int, tuple[IntColumn, IntColumn, IntColumn]]:
        """Return the first row's arrival, and arrivals after it, prompt and output tokens.

        Arrivals may be dates: in picoseconds only their differences fit 64 bits.
        """
        base: int | None = None
        columns = (array("q"), array("q"), array("q"))
        for arrival_ps, prompt, output in self._requests():
            base = arrival_ps if base is None else base
            if abs(arrival_ps - base) > LARGEST_ARRIVAL_PS:
                raise self._too_long()
            for column, value in zip(columns, (arrival_ps - base, prompt, output), strict=True):
                column.append(value)
        return base or 0, columns

    def _too_long(self) -> InputError:
        return InputError(
            f"the arrivals span more than 53 days when read in {self._format.time_unit}",
            file=self._file,
            field=self._format.arrival_column,
            fix="is this the right format?",
        )

    def _requests(self) -> Iterator[tuple[int, int, int]]:
        """Yield (arrival in ps, prompt tokens, output tokens) in file order."""
        spec = self._format
        rows = _json_rows if spec.is_json else _csv_rows
        low = 0 if spec.zero_output_fails else 1
        for count, (number, row) in enumerate(rows(self._lines, self._file, spec)):
            if count >= LARGEST_REQUESTS:
                problem = f"holds more than {LARGEST_REQUESTS:,} requests"
                raise InputError(problem, file=self._file, line=number, fix="use a smaller file")
            column = spec.arrival_column
            try:
                arrival_ps = spec.arrival(_cell(row, column))
                column = spec.prompt_column
                prompt = tokens(_cell(row, column))
                column = spec.output_column
                output = tokens(_cell(row, column), low=low)
                column = "hash_ids"
                self._look_at_hashes(row, prompt)
            except BadValueError as error:
                raise InputError(
                    error.problem, file=self._file, line=number, field=column, fix=error.fix
                ) from None
            if not self._known.issuperset(row):
                self._rows_with_unknown += 1
                if len(self._unknown) < _COUNTED_FIELDS:
                    self._unknown.update(row.keys() - self._known)
            if output:
                yield arrival_ps, prompt, output
            else:
                self._failed += 1

    def _look_at_hashes(self, row: Row, prompt: int) -> None:
        """Check the form of prefix hashes, which are not used."""
        if not self._format.hash_block_tokens or row.get("hash_ids") is None:
            return
        self._hashed = True
        hashes = row["hash_ids"]
        if not isinstance(hashes, list):
            raise BadValueError("is not a list", "write a list of numbers, or leave it out")
        block = tokens(row.get("block_size", self._format.hash_block_tokens))
        if len(hashes) > -(-prompt // block):
            self._rows_over_hashed += 1

    def _warnings(self, unsorted: bool, first_ps: int) -> Iterator[str]:
        if unsorted:
            yield "the rows are not in order of arrival; they were sorted"
        if first_ps and self._format.time_unit != "date and time":
            yield f"times were shifted by {first_ps / PS_PER_S:g} s so that the first arrives at 0"
        if self._unknown:
            names = [printable(name, 40) for name in sorted(self._unknown)]
            more = "" if len(names) <= _NAMED_FIELDS else f" and {len(names) - _NAMED_FIELDS} more"
            yield (
                f"unknown fields were ignored in {self._rows_with_unknown} of the rows: "
                f"{', '.join(names[:_NAMED_FIELDS])}{more}"
            )
        if self._hashed:
            yield "hash_ids are ignored: no prefix is cached, every prompt is prefilled in full"
        if self._rows_over_hashed:
            yield f"more prefix hashes than the length allows: {self._rows_over_hashed} of the rows"
        if self._failed:
            yield f"failed requests (no output tokens) were dropped: {self._failed} of the rows"
        if self._lines.unterminated and not self._format.is_json:
            yield "the last line has no line end: is the file complete?"


def _cell(row: Row, column: str) -> Any:
    if column not in row:
        raise BadValueError("is missing", f"every row needs {column}")
    return row[column]


def _filled(lines: TextLines, file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank; refuse a flood of blank ones."""
    blank = 0
    for number, text in lines:
        blank = _blanks(blank, bool(text and not text.isspace()), file, number)
        if not blank:
            yield number, text


def _blanks(before: int, filled: bool, file: str, number: int) -> int:
    """Count the blank lines in a row that end here; refuse too many."""
    if before >= _BLANK_LINES and not filled:
        fix = "is this the right file?"
        raise InputError("holds too many blank lines", file=file, line=number, fix=fix)
    return 0 if filled else before + 1


def _json_rows(lines: TextLines, file: str, spec: RequestFormat) -> Iterator[tuple[int, Row]]:
    for number, text in _filled(lines, file):
        row = loads_json(text, file, number).value
        if not isinstance(row, dict):
            raise InputError(
                "is not a JSON object",
                file=file,
                line=number,
                fix=f"write one object with {', '.join(spec.needed)} per line",
            )
        yield number, row


def _csv_rows(lines: TextLines, file: str, spec: RequestFormat) -> Iterator[tuple[int, Row]]:
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for at, text in lines:
            number = at
            yield text

    header: list[str] | None = None
    blank = 0
    try:
        for cells in csv.reader(texts(), strict=True):
            # Separators alone, as spreadsheets write for an empty row, are blank too.
            blank = _blanks(blank, bool("".join(cells).strip()), file, number)
            if blank:
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                _check_header(header, file, number, spec)
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"has {len(cells)} cells under {len(header)} columns",
                    file=file,
                    line=number,
                    fix="is the line cut off?",
                )
            yield number, dict(zip(header, map(_csv_cell, cells), strict=True))
    except csv.Error as error:
        raise InputError(f"is not CSV ({error})", file=file, line=number or None) from None


def _csv_cell(cell: str) -> Any:
    return cell_number(cell.strip())


def _check_header(header: list[str], file: str, number: int, spec: RequestFormat) -> None:
    missing = [name for name in spec.needed if name not in header]
    if missing:
        guess = did_you_mean(missing[0], header)
        raise InputError(
            f"no column {', '.join(missing)}",
            file=file,
            line=number,
            fix=f"the first line must name the columns{guess}",
        )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        shown = printable(twice[0], 40)
        raise InputError(f"column {shown!r} stands twice", file=file, line=number, fix="keep one")
