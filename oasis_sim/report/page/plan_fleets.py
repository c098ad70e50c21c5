"""The fleets of a plan: how many GPUs each card and scheme needs, its targets, what binds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis_sim.report.between_nodes import nodes_text
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
                *_size_cells(each),
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
        *("hardware, scheme", "GPUs", *_size_header(plan["fleets"])),
        *("output tokens/s per GPU", "running batch", "PCIe to GPU (share used)"),
        *("HBM at peak (GiB per GPU)", "host memory at peak (GiB per GPU)"),
        "energy of the GPUs, at most (kWh per million output tokens)",
        *((f"cost per million output tokens ({currency})",) if currency else ()),
    )
    return Table("fleets", "Fleets, best first", header, tuple(rows))


def nodes_of(fleet: Document) -> tuple[int, int] | None:
    """Return the prefill and decode nodes of a fleet, None where a replica does both."""
    nodes = fleet["replica"].get("disaggregation")
    return None if nodes is None else (nodes["prefill_nodes"], nodes["decode_nodes"])


def layout_of(fleet: Document) -> str:
    """Return the replicas or nodes of a fleet in words."""
    nodes = nodes_of(fleet)
    if nodes is None:
        return f"{counted(fleet['replicas'], 'replica')} of tp {fleet['tp']}"
    return f"{nodes_text(*nodes)} of tp {fleet['tp']}"


def _size_header(fleets: Sequence[Document]) -> tuple[str, ...]:
    if nodes_of(fleets[0]) is None:
        return "replicas", "GPUs per replica", "replicas that fail"
    return "prefill nodes", "decode nodes", "GPUs per node", "prefill:decode nodes that fail"


def _size_cells(fleet: Document) -> tuple[Cell, ...]:
    nodes, tp = nodes_of(fleet), whole(fleet["tp"])
    if nodes is None:
        return whole(fleet["replicas"]), tp, whole(fleet["fails_with_replicas"])
    return *map(whole, nodes), tp, words(", ".join(fleet["fails_with_nodes"]) or None)


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
    unit = "replica" if nodes_of(fleets[0]) is None else "node"
    header = ("hardware, scheme", "what binds", f"what one {unit} fewer misses")
    return Table("binding", "What binds", header, rows)
