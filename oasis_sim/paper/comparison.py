"""A published table beside a simulated one: rows, errors and their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oasis_sim.paper.published import KeyValue, Published


@dataclass(frozen=True)
class Row:
    """Hold one number: its key columns, metric and unit, published (None: not) and simulated.

    `extra` are further numbers of the row, by name with their unit; all rows have the same ones.
    """

    keys: Mapping[str, KeyValue]
    metric: str
    unit: str
    published: float | None
    simulated: float | None
    extra: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def error_pct(self) -> float | None:
        """Return 100 (simulated - published) / published, None without both."""
        if self.published is None or self.simulated is None:
            return None
        return 100.0 * (self.simulated - self.published) / self.published

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values, key columns first."""
        return {
            **self.keys,
            "metric": self.metric,
            "unit": self.unit,
            "published": self.published,
            "simulated": self.simulated,
            **self.extra,
            "error_pct": self.error_pct,
        }


@dataclass(frozen=True)
class Comparison:
    """Hold a whole table or figure; `notes` say what was simulated and on what it rests."""

    name: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def mape_pct(self) -> float | None:
        """Return the mean absolute error over rows that have a published value, in percent."""
        errors = [abs(row.error_pct) for row in self.rows if row.error_pct is not None]
        return sum(errors) / len(errors) if errors else None

    def to_json(self) -> dict[str, Any]:
        """Return {"name", "rows", "mape_pct"} as plain values."""
        return {
            "name": self.name,
            "rows": [row.to_json() for row in self.rows],
            "mape_pct": self.mape_pct,
        }


def beside(
    published: Published,
    table: str,
    keys: Mapping[str, KeyValue],
    units: Mapping[str, str],
    simulated: Mapping[str, float | None],
    extra: Mapping[str, float | None] | None = None,
) -> list[Row]:
    """Return one row per metric of `units`, in its order, at these key columns."""
    return [
        Row(
            keys,
            metric,
            unit,
            published.value(table, keys, metric),
            simulated.get(metric),
            extra or {},
        )
        for metric, unit in units.items()
    ]
