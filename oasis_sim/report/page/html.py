"""A report as one HTML page: it opens offline, asks for nothing and runs no script."""

from __future__ import annotations

import base64
import importlib.resources
import re
from collections.abc import Sequence

from oasis_sim.report.page.document import (
    Bars,
    Cell,
    Curves,
    Drawing,
    Figure,
    Report,
    Section,
    Table,
    Text,
)
from oasis_sim.report.page.markup import Markup, element, join
from oasis_sim.report.page.numbers import table_csv
from oasis_sim.report.page.svg_bars import draw_bars
from oasis_sim.report.page.svg_curves import draw_curves
from oasis_sim.report.page.svg_parts import fills
from oasis_sim.report.page.svg_tracks import draw_tracks

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
ANSWER = "answer"
BETWEEN_PARTS = re.compile(r"(?<=[._])(?=[a-z])")


def page(report: Report) -> str:
    """Return the whole page."""
    sections = [_section(each, f"part{index}") for index, each in enumerate(report.sections, 1)]
    body = element(
        "body",
        element("a", "Skip to the answer", href="#main", class_="skip"),
        fills(),
        element("header", element("h1", report.title)),
        _contents(report),
        element("main", _answer(report), *sections, id="main", tabindex=-1),
        element("footer", element("p", f"Made by {report.version}. No request, no script.")),
    )
    return f"<!doctype html>\n{element('html', _head(report), body, lang='en')}\n"


def _head(report: Report) -> Markup:
    style = importlib.resources.files("oasis_sim.report.page").joinpath("style.css")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="generator", content=report.version),
        element("link", rel="icon", href="data:,"),
        element("title", report.title),
        element("style", Markup(style.read_text(encoding="utf-8"))),
    )


def _contents(report: Report) -> Markup:
    links = [
        element("li", element("a", each.title, href=f"#part{index}"))
        for index, each in enumerate(report.sections, 1)
    ]
    return element("nav", element("ul", *links), aria_label="Parts of this report")


def _answer(report: Report) -> Markup:
    cautions = [element("p", each, class_="caution") for each in report.cautions]
    return element(
        "section",
        element("h2", "Answer", id=ANSWER),
        element("p", report.answer, class_="answer"),
        *cautions,
        aria_labelledby=ANSWER,
    )


def _section(section: Section, name: str) -> Markup:
    figures = [_figure(each) for each in section.figures]
    return element(
        "section",
        element("h2", section.title, id=name),
        *(element("p", each) for each in section.paragraphs),
        *(element("pre", element("code", each)) for each in section.commands),
        element("div", *figures, class_="figures") if figures else None,
        *(_table(each) for each in section.tables),
        *(_text(each) for each in section.texts),
        aria_labelledby=name,
    )


def _figure(figure: Figure) -> Markup:
    return element(
        "figure",
        element("h3", figure.title),
        _drawing(figure.drawing, figure.words),
        element("figcaption", figure.words),
        element("details", element("summary", "Numbers"), _table(figure.table)),
    )


def _drawing(drawing: Drawing, words: str) -> Markup:
    if isinstance(drawing, Curves):
        return draw_curves(drawing, words)
    return draw_bars(drawing, words) if isinstance(drawing, Bars) else draw_tracks(drawing, words)


def _table(table: Table) -> Markup:
    sides = ["n" if numeric else None for numeric in table.numeric_columns()]
    head = [
        element("th", title, scope="col", class_=side)
        for title, side in zip(table.header, sides, strict=True)
    ]
    rows = [element("tr", *_cells(row, sides)) for row in table.rows]
    whole = element(
        "table",
        element("caption", table.title),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
    )
    scroll = element(
        "div", whole, class_="scroll", role="region", tabindex=0, aria_label=table.title
    )
    return join(scroll, _download(f"{table.name}.csv", "text/csv", table_csv(table), table.title))


def _cells(row: Sequence[Cell], sides: Sequence[str | None]) -> list[Markup]:
    first, *rest = row
    return [
        element("th", _name(first), scope="row", class_=sides[0]),
        *(
            element("td", _content(cell), class_=side if cell.is_number else side and "n words")
            for cell, side in zip(rest, sides[1:], strict=True)
        ),
    ]


def _name(cell: Cell) -> Markup:
    """Return the name of a row; on a narrow screen a dotted path may break between its parts."""
    if cell.is_number:
        return _content(cell)
    first, *rest = BETWEEN_PARTS.split(cell.text)
    return join(first, *(each for part in rest for each in (element("wbr"), part)))


def _content(cell: Cell) -> Markup:
    """Return the shown text; the exact value stands behind it where they differ."""
    if cell.is_number and str(cell.value) != cell.text:
        return element("data", cell.text, value=str(cell.value))
    return join(cell.text)


def _text(text: Text) -> Markup:
    return element(
        "details",
        element("summary", text.title),
        element("pre", text.content, tabindex=0, role="region", aria_label=text.title),
        _download(text.name, "text/plain", text.content, text.title),
    )


def _download(name: str, kind: str, content: str, title: str) -> Markup:
    """Return a link to content that lies in the page itself."""
    packed = base64.b64encode(content.encode("utf-8", "backslashreplace")).decode("ascii")
    link = element(
        "a",
        f"{name}",
        href=f"data:{kind};charset=utf-8;base64,{packed}",
        download=name,
        aria_label=f"{name}: {title}",
    )
    return element("p", link, class_="csv")
