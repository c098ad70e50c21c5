"""Published numbers, each with its unit, kind and source, read from `published.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oasis_sim.fileio import Document, Fields, load_yaml

KINDS = ("quoted", "read_off", "derived")
TEXT_KEYS = ("model", "predictor", "system")
NUMBER_KEYS = (
    "attended_tokens",
    "batch",
    "concurrency",
    "context_tokens",
    "fetch_ratio",
    "hit_fraction",
    "layer",
    "network_gbit_per_s",
    "request_rate",
)
KEYS = (*TEXT_KEYS, *NUMBER_KEYS)
FILE = Path(__file__).with_name("published.yaml")

KeyValue = str | float


@dataclass(frozen=True)
class PublishedValue:
    """Hold one published number; `kind` is one of KINDS."""

    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True)
class PublishedPoint:
    """Say where a number stands: table, key columns and metric."""

    table: str
    keys: frozenset[tuple[str, KeyValue]]
    metric: str

    @classmethod
    def of(cls, table: str, keys: Mapping[str, KeyValue], metric: str) -> PublishedPoint:
        """Name a point; numbers are compared as numbers (1 is 1.0)."""
        return cls(table, frozenset(keys.items()), metric)


@dataclass(frozen=True, eq=False)
class Published:
    """Hold every published number."""

    paper: str
    values: Mapping[PublishedPoint, PublishedValue]

    def get(self, table: str, keys: Mapping[str, KeyValue], metric: str) -> PublishedValue | None:
        """Return the number at these key columns, None where the paper has none."""
        return self.values.get(PublishedPoint.of(table, keys, metric))

    def value(self, table: str, keys: Mapping[str, KeyValue], metric: str) -> float | None:
        """Return the number itself, None where the paper has none."""
        found = self.get(table, keys, metric)
        return None if found is None else found.value


def load_published(path: Path = FILE) -> Published:
    """Read a file of published numbers; raise InputError with every mistake in it."""
    return read_published(load_yaml(path))


def read_published(document: Document) -> Published:
    """Check a parsed file of published numbers."""
    top = Fields.of(document)
    top.integer("schema_version", low=1, high=1)
    paper = top.text("paper")
    values: dict[PublishedPoint, PublishedValue] = {}
    for series in top.children("series"):
        for point, value in _read_series(series):
            if point in values:
                where = ", ".join(f"{key} {item}" for key, item in sorted(point.keys))
                problem = f"{point.metric} at {where or 'no key'} was given before"
                series.mistake("points", problem, "remove one of them", None)
            values[point] = value
    top.finish()
    return Published(paper, values)


def _read_series(fields: Fields) -> list[tuple[PublishedPoint, PublishedValue]]:
    """Read one metric along one key column, the other key columns fixed by `where`."""
    table, metric, unit = fields.text("table"), fields.text("metric"), fields.text("unit")
    kind, source = fields.text("kind", choices=KINDS), fields.text("source")
    where = _read_where(fields.child("where"))
    over = fields.text("over", choices=KEYS)
    points = _read_points(fields, over)
    values = fields.numbers("values", count=len(points))
    if over in where:
        fields.mistake("over", f"{over} is fixed by where", "remove it there", None)
    return [
        (
            PublishedPoint.of(table, {**where, over: point}, metric),
            PublishedValue(value, unit, kind, source),
        )
        for point, value in zip(points, values, strict=False)
    ]


def _read_points(fields: Fields, over: str) -> tuple[KeyValue, ...]:
    return fields.texts("points") if over in TEXT_KEYS else fields.numbers("points")


def _read_where(fields: Fields) -> dict[str, KeyValue]:
    found: dict[str, KeyValue] = {key: fields.text(key) for key in TEXT_KEYS if fields.has(key)}
    found.update({key: fields.number(key) for key in NUMBER_KEYS if fields.has(key)})
    return found
