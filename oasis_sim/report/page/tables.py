"""Tables that several reports have: what was put in, capacities as resolved, every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis_sim.report.csvfile import flatten
from oasis_sim.report.page.document import Cell, Table, amount, words
from oasis_sim.report.row import Summary
from oasis_sim.report.view import View
from oasis_sim.units import GIB

CAPACITIES = (
    ("HBM (GiB)", ("tiers", "hbm", "capacity_bytes"), GIB),
    ("usable by the engine (GiB)", ("tiers", "hbm", "usable_bytes"), GIB),
    ("weights (GiB)", ("tiers", "hbm", "weights_bytes"), GIB),
    ("KV pool (GiB)", ("tiers", "hbm", "kv_pool_bytes"), GIB),
    ("host memory for KV (GiB)", ("tiers", "host", "capacity_bytes"), GIB),
    ("PCIe to GPU, nominal (GB/s)", ("links", "pcie_h2d", "nominal_gb_per_s"), 1),
    ("PCIe to GPU, by this transport (GB/s)", ("links", "pcie_h2d", "limit_gb_per_s"), 1),
)


def value_cell(value: Any) -> Cell:
    """Return a cell of any value of a summary."""
    if isinstance(value, bool):
        return words("yes" if value else "no")
    if isinstance(value, int | float):
        return amount(value)
    return words(None if value is None else str(value))


def exact_cell(value: Any) -> Cell:
    """Return a cell that shows a value with all its digits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return amount(value, str)
    return value_cell(value)


def leaves(name: str, title: str, values: Mapping[str, Any]) -> Table:
    """Return nested values as rows of dotted path and exact value."""
    rows = tuple((words(path), exact_cell(value)) for path, value in flatten(values))
    return Table(name, title, ("name, with its unit", "value"), rows)


def view_tables(view: View) -> tuple[Table, ...]:
    """Return what `run` prints, a table for each of its sections."""
    found = []
    for index, section in enumerate(view.sections):
        rows = tuple(
            (words(row.label), words(row.value), words(row.detail)) for row in section.rows
        )
        title = section.title or "Speed"
        found.append(Table(f"result_{index + 1}", title, ("what", "value", "rests on"), rows))
    return tuple(found)


def capacities(cases: Sequence[tuple[str, Summary]]) -> Table:
    """Return each capacity per GPU as it was resolved."""
    rows = []
    for case, summary in cases:
        cells = []
        for _, path, unit in CAPACITIES:
            value: Any = summary
            for key in path:
                value = value[key]
            cells.append(amount(None if value is None else value / unit))
        rows.append((words(case), *cells))
    header = ("case", *(title for title, _, _ in CAPACITIES))
    return Table("capacities", "Capacities as resolved, per GPU", header, tuple(rows))


def versions(summary_or_plan: Mapping[str, Any]) -> str:
    """Return the program's version as the results have it."""
    return f"oasis-sim {summary_or_plan['oasis_sim_version']}"
