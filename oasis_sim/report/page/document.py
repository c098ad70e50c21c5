"""What a report consists of, apart from how it is shown: sections of text, tables and figures.

Every number is kept as it is known beside the text that is shown, so that page, Markdown and CSV
hold the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oasis_sim.report.numbers import NOTHING, count, number

Value = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """Hold one value and the text that shows it."""

    value: Value
    text: str

    @property
    def is_number(self) -> bool:
        """Tell whether the cell stands right-aligned among numbers."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


@dataclass(frozen=True)
class Table:
    """Hold rows under a header whose columns name their units; the first column names the row.

    `name` is unique within a report: it names the table in CSV.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def numeric_columns(self) -> list[bool]:
        """Tell which columns hold numbers (or nothing where a number could stand)."""
        return [any(row[index].is_number for row in self.rows) for index in range(len(self.header))]


@dataclass(frozen=True)
class Axis:
    """Name what an axis shows, with its unit; `log` spaces equal ratios equally.

    `whole`: what is counted has no halves.
    """

    title: str
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Point:
    """Hold one marker of a line; `label` says what it stands for."""

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True)
class Line:
    """Hold points that are joined in their order."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Curves:
    """Draw lines over two axes; points of `front` are ringed, `limit` is a level of y."""

    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    front: tuple[Point, ...] = ()
    limit: float | None = None
    limit_name: str = ""


@dataclass(frozen=True)
class Bar:
    """Hold one bar: the lengths of its parts, in the order of the parts' names, and its text."""

    label: str
    parts: tuple[float, ...]
    text: str
    mark: float | None = None


@dataclass(frozen=True)
class Bars:
    """Draw horizontal bars from zero on one scale; `mark` is a tick across a bar.

    `free_last`: the last part is what is left, drawn hollow.
    """

    axis: Axis
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]
    mark_name: str = ""
    free_last: bool = False

    def fill_of(self, part: int) -> int | None:
        """Return the number of a part's fill, None for a hollow one."""
        return None if self.free_last and part == len(self.parts) - 1 else part


@dataclass(frozen=True)
class Span:
    """Hold one slice of a track; times are microseconds from the left edge."""

    track: str
    kind: str
    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Tracks:
    """Draw slices on parallel tracks over one axis of time."""

    axis: Axis
    tracks: tuple[str, ...]
    kinds: tuple[str, ...]
    spans: tuple[Span, ...]
    length: float


Drawing = Curves | Bars | Tracks


@dataclass(frozen=True)
class Figure:
    """Hold a drawing, what it shows in words for those who do not see it, and its numbers."""

    title: str
    words: str
    drawing: Drawing
    table: Table


@dataclass(frozen=True)
class Text:
    """Hold a file's text, shown as it is and offered under its name."""

    name: str
    title: str
    content: str


@dataclass(frozen=True)
class Section:
    """Hold what stands under one heading."""

    title: str
    paragraphs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    texts: tuple[Text, ...] = ()

    def all_tables(self) -> tuple[Table, ...]:
        """Return the tables of the figures, then the others."""
        return (*(figure.table for figure in self.figures), *self.tables)


@dataclass(frozen=True)
class Report:
    """Hold a whole report: the answer first, then what it rests on."""

    title: str
    answer: str
    cautions: tuple[str, ...]
    sections: tuple[Section, ...]
    version: str


def words(text: str | None) -> Cell:
    """Return a cell of text."""
    return Cell(text, NOTHING if text is None else text)


def amount(value: float | None, show: Callable[[float], str] = number) -> Cell:
    """Return a cell of a number, or of nothing."""
    return Cell(value, NOTHING if value is None else show(value))


def whole(value: int | None) -> Cell:
    """Return a cell of a whole number, or of nothing."""
    return Cell(value, count(value))
