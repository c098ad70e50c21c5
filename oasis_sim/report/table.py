"""Draw a report for a terminal. Names are text, never markup."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oasis_sim.report.row import Row
from oasis_sim.report.view import Section, View
from oasis_sim.text import plain

WIDTH_WITHOUT_TERMINAL = 110
WIDTH_OF_PIPED_COLUMNS = 10_000
"""Wide enough that no cell of a list is folded where another program reads it."""


def print_view(view: View, stream: IO[str]) -> None:
    """Print a report on a stream, in colour only on a terminal that wants it."""
    parts: list[RenderableType] = [Text(plain(view.heading), style="bold")]
    if view.warning:
        parts.append(Text(plain(view.warning), style="bold yellow"))
    rows = [row for section in view.sections for row in section.rows]
    width = max((len(row.label) for row in rows), default=0)
    values = max((len(row.value) for row in rows), default=0)
    for section in view.sections:
        parts += [Text(), Text(section.title, style="bold")] if section.title else [Text()]
        parts.append(Padding(_grid(section, width, values), (0, 0, 0, 2)))
    notes = [Text(plain(note), style="dim") for note in view.notes]
    parts += [Text(), *notes] if notes else []
    _print(Group(*parts), stream)


def print_rows(rows: Sequence[Sequence[object]], stream: IO[str]) -> None:
    """Print rows as columns under the first of them."""
    header, *body = [[plain(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in header:
        table.add_column(Text(title), header_style="bold", overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    _print(table, stream, WIDTH_OF_PIPED_COLUMNS)


def _print(content: RenderableType, stream: IO[str], width: int = WIDTH_WITHOUT_TERMINAL) -> None:
    """Print on a terminal as it is; elsewhere with a fixed width, without colour or padding."""
    if stream.isatty():
        plainly = bool(os.environ.get("NO_COLOR"))
        Console(
            file=stream,
            highlight=False,
            emoji=False,
            markup=False,
            color_system=None if plainly else "auto",
        ).print(content)
        return
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        highlight=False,
        emoji=False,
        markup=False,
        color_system=None,
        force_terminal=False,
    )
    console.print(content)
    stream.writelines(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _grid(section: Section, label_width: int, value_width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=label_width)
    grid.add_column(width=value_width, justify="right", style="bold")
    grid.add_column(overflow="fold")
    for row in section.rows:
        grid.add_row(*_cells(row))
    return grid


def _cells(row: Row) -> tuple[Text, Text, Text]:
    return Text(plain(row.label)), Text(plain(row.value)), Text(plain(row.detail))
