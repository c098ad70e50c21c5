"""What plots share: the points of a comparison, and the colours of systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oasis_sim.paper.comparison import Comparison, Row

SIMULATED, PUBLISHED = "simulated", "published"
COLOURS = {
    "oasis": "#1b7f5c",
    "dense": "#4d4d4d",
    "shadowkv": "#7b5ea7",
    "infinigen": "#c8641e",
    "freekv": "#2f6db5",
    "full_transfer": "#2f6db5",
    "partial_fetch": "#1b7f5c",
    "draft": "#1b7f5c",
    "previous": "#c8641e",
}
PALETTE = (
    "#1b7f5c",
    "#c8641e",
    "#7b5ea7",
    "#2f6db5",
    "#b03a5b",
    "#7a8b1f",
    "#946b2d",
    "#4d4d4d",
    "#23949b",
)
LIGHT = "#b9cfc6"


@dataclass(frozen=True)
class Points:
    """Hold one line of a plot: places and values, in the order of the rows."""

    x: tuple[Any, ...]
    y: tuple[float, ...]


def chosen(comparison: Comparison, metric: str, where: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a metric at fixed key columns."""
    return [
        row
        for row in comparison.rows
        if row.metric == metric and all(row.keys.get(key) == value for key, value in where.items())
    ]


def points(rows: list[Row], over: str, kind: str) -> Points:
    """Return the simulated or published values of rows over a key column, without the empty."""
    found = [(row.keys[over], getattr(row, kind)) for row in rows]
    kept = [(x, value) for x, value in found if value is not None]
    return Points(tuple(x for x, _ in kept), tuple(value for _, value in kept))


def values_of(comparison: Comparison, key: str) -> list[Any]:
    """Return the values of a key column, each once, in the order of the rows."""
    return list(dict.fromkeys(row.keys[key] for row in comparison.rows if key in row.keys))
