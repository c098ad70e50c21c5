"""Figures of the machine: memory by tier, the link's budget against need, a step's timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oasis_sim.report.numbers import counted, gibibytes, number, percent
from oasis_sim.report.operating import Operating
from oasis_sim.report.page.document import (
    Axis,
    Bar,
    Bars,
    Cell,
    Curves,
    Figure,
    Line,
    Point,
    Span,
    Table,
    Tracks,
    amount,
    words,
)
from oasis_sim.report.row import Summary
from oasis_sim.report.timeline import TRACKS
from oasis_sim.units import GIB

Case = tuple[str, Summary]
HBM_PARTS = ("weights", "reserved", "KV at peak", "usable, free")
HOST_PARTS = ("KV at peak", "weights", "free")
STAGE_NAMES = {
    "qkv": "QKV",
    "attention": "attention",
    "output_ffn": "output and FFN",
    "lm_head": "LM head",
    "transfer_wait": "waiting",
    "prediction": "prediction",
    "selection": "selection",
    "transfer": "transfer of blocks",
}


def memory_figures(cases: Sequence[Case]) -> tuple[Figure, ...]:
    """Return what lies in HBM and in host memory per GPU; host memory where any is used."""
    found = [_hbm(cases)]
    if any(summary["tiers"]["host"]["peak_bytes"] for _, summary in cases):
        found.append(_host([case for case in cases if case[1]["tiers"]["host"]["peak_bytes"]]))
    return tuple(found)


def _hbm(cases: Sequence[Case]) -> Figure:
    sizes = []
    for _, summary in cases:
        hbm = summary["tiers"]["hbm"]
        free = hbm["usable_bytes"] - hbm["peak_bytes"]
        sizes.append((hbm["weights_bytes"], hbm["reserved_bytes"], hbm["peak_kv_bytes"], free))
    capacities = [summary["tiers"]["hbm"]["capacity_bytes"] for _, summary in cases]
    return _memory("hbm", "HBM per GPU", HBM_PARTS, cases, sizes, capacities)


def _host(cases: Sequence[Case]) -> Figure:
    sizes, capacities = [], []
    for _, summary in cases:
        host = summary["tiers"]["host"]
        weights, kv = host["weights_bytes"], host["peak_bytes"] - host["weights_bytes"]
        sizes.append((kv, weights, host["capacity_bytes"] - host["peak_bytes"]))
        capacities.append(host["capacity_bytes"])
    return _memory("host", "Host memory for KV per GPU", HOST_PARTS, cases, sizes, capacities)


def _memory(
    name: str,
    title: str,
    parts: tuple[str, ...],
    cases: Sequence[Case],
    sizes: Sequence[tuple[int, ...]],
    capacities: Sequence[int],
) -> Figure:
    bars, rows, told = [], [], []
    for (case, _), size, capacity in zip(cases, sizes, capacities, strict=True):
        used = sum(size[:-1])
        text = f"{gibibytes(used)} of {gibibytes(capacity)}"
        lengths = tuple(max(part, 0) / GIB for part in size)
        bars.append(Bar(case, lengths, text, capacity / GIB))
        told.append(f"{case}: {text}")
        rows.append((words(case), *(_gib(part) for part in size), _gib(capacity)))
    header = ("case", *(f"{part} (GiB)" for part in parts), "capacity (GiB)")
    return Figure(
        title,
        f"At peak: {'; '.join(told)}.",
        Bars(Axis("GiB"), parts, tuple(bars), "capacity", free_last=True),
        Table(f"memory_{name}", f"{title}, at peak", header, tuple(rows)),
    )


def _gib(size: int) -> Cell:
    return amount(size / GIB)


def link_figure(points: Mapping[float, Operating], about: str) -> Figure:
    """Draw what the link must carry in a step and what it could, over the fetch ratio."""
    kinds = (
        ("h2d_missing_bytes_per_step", "missing blocks"),
        ("h2d_bytes_per_step", "fetched"),
        ("h2d_budget_bytes_per_step", "budget of the link"),
    )
    lines = tuple(
        Line(
            name,
            tuple(
                Point(ratio, point[key] / 1e6, f"ratio {ratio:g}: {number(point[key] / 1e6)} MB")
                for ratio, point in points.items()
                if point[key] is not None
            ),
        )
        for key, name in kinds
    )
    rows = tuple(
        (
            amount(ratio, lambda value: f"{value:g}"),
            *(amount(None if point[key] is None else point[key] / 1e6) for key, _ in kinds),
            amount(point["step_ms_mean"]),
            amount(point["transfer_wait_ms_per_step"]),
            amount(point["h2d_utilisation"], percent),
            amount(point["attention_mass_mean"], percent),
        )
        for ratio, point in points.items()
    )
    header = (
        "fetch ratio",
        *(f"{name} (MB/step)" for _, name in kinds),
        "step (ms)",
        "waiting for transfers (ms/step)",
        "link in use (share)",
        "attention mass captured, a proxy (share)",
    )
    return Figure(
        "PCIe budget against need by fetch ratio",
        _link_words(points, about),
        Curves(Axis("fetch ratio", log=True), Axis("MB per step and GPU, host to GPU"), lines),
        Table("pcie_by_ratio", f"PCIe budget against need: {about}", header, rows),
    )


def _link_words(points: Mapping[float, Operating], about: str) -> str:
    within = [
        ratio
        for ratio, point in points.items()
        if point["h2d_bytes_per_step"] <= (point["h2d_budget_bytes_per_step"] or 0.0)
    ]
    if not within:
        verdict = "at no ratio is what is fetched within the budget"
    elif len(within) == len(points):
        verdict = "at every ratio what is fetched is within the budget"
    else:
        verdict = f"what is fetched is within the budget up to {max(within):g}"
    waits = [point["transfer_wait_ms_per_step"] or 0.0 for point in points.values()]
    waiting = f"compute waits {number(waits[0])} to {number(waits[-1])} ms of a step for transfers"
    return (
        f"{about}: {verdict}; {waiting}. The budget is the link's limit times the step without "
        "that wait. Each layer waits for its own blocks, and small transfers are slower than the "
        "limit, so compute may wait within the budget. What is missing is an estimate from the "
        "blocks missing per block fetched."
    )


def timeline_figure(window: Mapping[str, Any], about: str, name: str = "step_timeline") -> Figure:
    """Draw a few layers of one step; the numbers are the time of each stage in the window."""
    spans = window["spans"]
    tracks = [name for name in TRACKS if any(each["track"] == name for each in spans)]
    stages = list(dict.fromkeys(each["stage"] for each in spans))
    kinds = [name for name in STAGE_NAMES if name in stages]
    kinds += [name for name in stages if name not in STAGE_NAMES]
    shown = tuple(
        Span(
            TRACKS[each["track"]].title,
            _stage(each["stage"]),
            f"{_stage(each['stage'])}, layer {each['layer']}",
            each["start_us"],
            each["start_us"] + each["length_us"],
        )
        for each in spans
        if each["track"] in TRACKS
    )
    rows = []
    for track in tracks:
        for stage in kinds:
            times = [e["length_us"] for e in spans if (e["track"], e["stage"]) == (track, stage)]
            if times:
                title = TRACKS[track].title
                rows.append(
                    (
                        words(f"{title}: {_stage(stage)}"),
                        amount(len(times)),
                        amount(round(sum(times), 3)),
                    )
                )
    layers = f"layers {window['first_layer']} to {window['last_layer']}"
    return Figure(
        "Timeline of a decode step",
        f"{about}, {layers} of step {window['step']:,}, {number(window['length_us'])} "
        "microseconds of simulated time; what runs beside what.",
        Tracks(
            Axis("microseconds"),
            tuple(TRACKS[name].title for name in tracks),
            tuple(map(_stage, kinds)),
            shown,
            window["length_us"],
        ),
        Table(
            name,
            f"Time by track and stage, {layers} of step {window['step']:,}",
            ("track: stage", "slices", "time (microseconds)"),
            tuple(rows),
        ),
    )


def _stage(name: str) -> str:
    return STAGE_NAMES.get(name, name)


def stages_figure(summary: Summary) -> Figure:
    """Draw the mean time of each stage of a step."""
    stages = {name: ms for name, ms in summary["stages_ms_per_step"].items() if ms}
    bars = tuple(Bar(_stage(name), (ms,), f"{number(ms)} ms") for name, ms in stages.items())
    rows = tuple((words(_stage(name)), amount(ms)) for name, ms in stages.items())
    mean = summary["steps"]["step_ms"]["mean"]
    largest = max(stages, key=lambda name: stages[name], default=None)
    told = "" if largest is None else f"; the longest: {_stage(largest)}"
    return Figure(
        "Where the time of a step goes",
        f"Mean over {counted(summary['steps']['count'], 'step')} of {number(mean)} ms; stages "
        f"that run beside others are not added{told}.",
        Bars(Axis("ms per step"), ("time",), bars),
        Table("stages", "Mean time of the stages of a step", ("stage", "time (ms/step)"), rows),
    )
