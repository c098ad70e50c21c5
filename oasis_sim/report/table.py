"""Draw a report for a terminal. Names are text, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oasis_sim.report.view import Row, Section, View
from oasis_sim.text import plain

WIDTH_WITHOUT_TERMINAL = 110


def print_view(view: View, stream: IO[str]) -> None:
    """Print a report on a stream, in colour only on a terminal that wants it."""
    console = console_for(stream)
    console.print(Text(plain(view.heading), style="bold"))
    if view.warning:
        console.print(Text(plain(view.warning), style="bold yellow"))
    console.print()
    width = max((len(row.label) for section in view.sections for row in section.rows), default=0)
    values = max((len(row.value) for section in view.sections for row in section.rows), default=0)
    for section in view.sections:
        if section.title:
            console.print(Text(section.title, style="bold"))
        console.print(Padding(_grid(section, width, values), (0, 0, 1, 2)))
    for note in view.notes:
        console.print(Text(plain(note), style="dim"))


def print_rows(rows: Sequence[Sequence[object]], stream: IO[str]) -> None:
    """Print rows as columns under the first of them."""
    header, *body = [[plain(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in header:
        table.add_column(Text(title), header_style="bold", overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    console_for(stream).print(table)


def console_for(stream: IO[str]) -> Console:
    """Return a console on a stream; off a terminal it has a fixed width and no colour."""
    if stream.isatty():
        return Console(file=stream, highlight=False, emoji=False, markup=False)
    return Console(
        file=stream,
        width=WIDTH_WITHOUT_TERMINAL,
        highlight=False,
        emoji=False,
        markup=False,
        color_system=None,
        force_terminal=False,
    )


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
