"""The fleets of a plan: how many GPUs each card and scheme needs, its targets, what binds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis_sim.report.numbers import counted, percent
from oasis_sim.report.page.document import (
    Axis,
    Bar,
    Bars,
    Cell,
    Figure,
    Section,
    Table,
    amount,
    whole,
    words,
)
from oasis_sim.units import GIB

GPUS = Axis("GPUs", whole=True)

Document = Mapping[str, Any]


def name_of(fleet: Document) -> str:
    """Return card and scheme."""
    return f"{fleet['profile']}, {fleet['scheme']}"


def fleets_section(plan: Document) -> Section:
    """Return the fleets, and what is missing where there is none."""
    fleets = plan["fleets"]
    rows = tuple(
        (words(answer["profile"] + ", " + answer["scheme"]), words("; ".join(answer["tried"])))
        for answer in plan["impossible"]
    )
    tables = [_fleet_table(plan), _target_table(fleets), _binding(fleets)] if fleets else []
    if rows:
        header = ("hardware, scheme", "what is missing")
        tables.append(Table("impossible", "No fleet meets the targets", header, rows))
    figures = (_gpus(fleets),) if len(fleets) > 1 else ()
    return Section("Fleets that meet the targets", figures=figures, tables=tuple(tables))


def _gpus(fleets: Sequence[Document]) -> Figure:
    bars = tuple(
        Bar(name_of(each), (each["gpus"],), counted(each["gpus"], "GPU")) for each in fleets
    )
    rows = tuple((words(name_of(each)), whole(each["gpus"])) for each in fleets)
    return Figure(
        "GPUs needed",
        f"The smallest fleet of each card and scheme, best first: {bars[0].label} needs "
        f"{bars[0].text}, {bars[-1].label} {bars[-1].text}.",
        Bars(GPUS, ("GPUs",), bars),
        Table("gpus", "GPUs needed", ("hardware, scheme", "GPUs"), rows),
    )


def _fleet_table(plan: Document) -> Table:
    rows = []
    for each in plan["fleets"]:
        replica = each["replica"]
        rows.append(
            (
                words(name_of(each)),
                whole(each["gpus"]),
                whole(each["replicas"]),
                whole(each["tp"]),
                whole(each["fails_with_replicas"]),
                amount(each["output_tokens_per_s"] / each["gpus"]),
                amount(replica["steps"]["running_batch"]["mean"]),
                amount(each["pcie_h2d_utilisation"], percent),
                amount(each["hbm_peak_bytes"] / GIB),
                amount(each["host_peak_bytes"] / GIB),
                amount(each["energy_kwh_per_million_output_tokens_at_most"]),
                *_cost_cells(plan, each),
            )
        )
    currency = plan["currency"]
    header = (
        *("hardware, scheme", "GPUs", "replicas", "GPUs per replica", "replicas that fail"),
        *("output tokens/s per GPU", "running batch", "PCIe to GPU (share used)"),
        *("HBM at peak (GiB per GPU)", "host memory at peak (GiB per GPU)"),
        "energy of the GPUs, at most (kWh per million output tokens)",
        *((f"cost per million output tokens ({currency})",) if currency else ()),
    )
    return Table("fleets", "Fleets, best first", header, tuple(rows))


def _cost_cells(plan: Document, fleet: Document) -> tuple[Cell, ...]:
    """Return the cost, where there are prices at all."""
    cost = fleet["cost_per_million_output_tokens"]
    return (amount(cost, lambda value: f"{value:.2f}"),) if plan["currency"] else ()


def _target_table(fleets: Sequence[Document]) -> Table:
    rows = tuple(
        (
            words(f"{name_of(each)}: {target['name']}"),
            amount(target["value_ms"]),
            amount(target["limit_ms"]),
            amount(target["head_room"], percent),
        )
        for each in fleets
        for target in each["targets"]
    )
    header = ("fleet: target", "reached (ms)", "limit (ms)", "head-room (share of the limit)")
    return Table("targets", "Targets and head-room", header, rows)


def _binding(fleets: Sequence[Document]) -> Table:
    rows = tuple(
        (words(name_of(each)), words(each["binding"]), words(each["why_fewer_fail"]))
        for each in fleets
    )
    header = ("hardware, scheme", "what binds", "what one replica fewer misses")
    return Table("binding", "What binds", header, rows)
