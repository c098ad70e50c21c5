"""A report as Markdown, for a pull request: the answer, plots as text, tables."""

from __future__ import annotations

import html
import re

from oasis_sim.report.chart import Bar as TextBar
from oasis_sim.report.chart import draw
from oasis_sim.report.page.document import Bars, Curves, Figure, Report, Section, Table, Text
from oasis_sim.report.page.plain_plot import plot
from oasis_sim.text import plain

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~!@])")


def markdown(report: Report) -> str:
    """Return the whole report."""
    parts = [f"# {inline(report.title)}", f"**{inline(report.answer)}**"]
    parts += [f"> {inline(each)}" for each in report.cautions]
    for section in report.sections:
        parts += _section(section)
    parts.append(f"Made by {inline(report.version)}.")
    return "\n\n".join(parts) + "\n"


def inline(content: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", plain(content))


def _section(section: Section) -> list[str]:
    parts = [f"## {inline(section.title)}", *map(inline, section.paragraphs)]
    parts += [_fenced(each) for each in section.commands]
    for figure in section.figures:
        parts += _figure(figure)
    parts += [_table(each) for each in section.tables]
    for text in section.texts:
        parts += _text(text)
    return parts


def _figure(figure: Figure) -> list[str]:
    lines = drawn(figure)
    picture = [_fenced("\n".join(lines))] if lines else []
    return [
        f"### {inline(figure.title)}",
        inline(figure.words),
        *picture,
        _folded("Numbers", _table(figure.table, titled=False)),
    ]


def drawn(figure: Figure) -> list[str]:
    """Return a figure's lines for a terminal; there are none for a timeline."""
    drawing = figure.drawing
    if isinstance(drawing, Curves):
        return plot(drawing)
    if isinstance(drawing, Bars):
        bars = [TextBar(each.label, sum(each.parts), each.text) for each in drawing.bars]
        return draw(drawing.axis.title, bars)
    return []


def _table(table: Table, *, titled: bool = True) -> str:
    lines = [f"{inline(table.title)}\n"] if titled else []
    lines.append(f"| {' | '.join(map(inline, table.header))} |")
    sides = ["---:" if numeric else "---" for numeric in table.numeric_columns()]
    lines.append(f"| {' | '.join(sides)} |")
    lines += [f"| {' | '.join(inline(cell.text) for cell in row)} |" for row in table.rows]
    return "\n".join(lines)


def _text(text: Text) -> list[str]:
    return [_folded(html.escape(plain(text.title)), _fenced(text.content.rstrip("\n")))]


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _fenced(content: str) -> str:
    """Return a block of text behind a fence that is longer than any run of backticks in it."""
    shown = "\n".join(plain(line) for line in content.splitlines())
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"
