"""A run's timeline as a trace-event file that Perfetto and chrome://tracing open.

One track per stream and per link, so that slices of a track never overlap. Compute is green,
transfers are red, waiting is yellow. chrome://tracing takes the colour from `cname`; Perfetto
derives it from the slice's name (a hash that skips digits), so the names below are also chosen
for the hue that Perfetto gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from oasis_sim.engine.result import BOUNDS, RunResult, Slice, StepLog
from oasis_sim.errors import RunFailed
from oasis_sim.metrics.describe import describe_traces
from oasis_sim.text import plain

FILE_NAME = "timeline.json"
PS_PER_NS = 1_000
NS_PER_US = 1_000

GREEN, RED, YELLOW, BLUE, GREY = (
    "good",
    "terrible",
    "yellow",
    "thread_state_runnable",
    "generic_work",
)


@dataclass(frozen=True)
class Track:
    """Describe one line of the timeline."""

    title: str
    process: str
    colour: str


STREAMS, LINKS = "GPU streams", "Links"
TRACKS: Mapping[str, Track] = MappingProxyType(
    {
        "step": Track("step", STREAMS, GREY),
        "compute": Track("compute (foreground)", STREAMS, GREEN),
        "prediction": Track("prediction", STREAMS, BLUE),
        "selection": Track("selection", STREAMS, BLUE),
        "transfer": Track("transfer", STREAMS, RED),
        "pcie_h2d": Track("PCIe, host to GPU", LINKS, RED),
        "pcie_d2h": Track("PCIe, GPU to host", LINKS, RED),
        "network": Track("network", LINKS, RED),
    }
)


@dataclass(frozen=True)
class Look:
    """Say how slices of one stage are called and coloured."""

    label: str
    colour: str


LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "qkv": Look("qkv", GREEN),
        "attention": Look("Attention", GREEN),
        "output_ffn": Look("Out+FFN", GREEN),
        "lm_head": Look("lm_head", GREEN),
        "draft": Look("draft", GREEN),
        "prefill": Look("Prefill chunk", GREEN),
        "launch": Look("launch", GREY),
        "transfer_wait": Look("Waiting on transfer", YELLOW),
        "prediction": Look("prediction", BLUE),
        "selection": Look("Pick blocks", BLUE),
        "transfer": Look("Block fetch from host", RED),
        "pcie_h2d": Look("Gather over PCIe", RED),
        "pcie_d2h": Look("New KV out", RED),
    }
)


def write_timeline(result: RunResult) -> str:
    """Return the JSON text of a run's timeline; raise RunFailed if slices of a track overlap."""
    recorded = result.slices
    slices = [*step_slices(result.steps, recorded), *recorded, *waiting_slices(recorded)]
    check_no_overlap(slices)
    used = {item.track for item in slices}
    tracks = [name for name in TRACKS if name in used]
    tracks += sorted(used.difference(TRACKS))
    lines = {name: number for number, name in enumerate(tracks, start=1)}
    events = [*_names(lines), *(_event(item, lines[item.track]) for item in slices)]
    document = {
        "displayTimeUnit": "ns",
        "otherData": _about(result),
        "traceEvents": [event for event in events if event is not None],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def step_slices(steps: StepLog, slices: Iterable[Slice]) -> list[Slice]:
    """Return one slice for each step that the slices touch."""
    shown = list(slices)
    if not shown:
        return []
    first = min(item.start_ps for item in shown)
    last = max(item.end_ps for item in shown)
    chosen = ((steps.end_ps > first) & (steps.start_ps < last)).nonzero()[0].tolist()
    return [
        Slice(
            "step",
            f"step {index}",
            int(steps.start_ps[index]),
            int(steps.end_ps[index]),
            {
                "sparse_rows": int(steps.sparse_rows[index]),
                "dense_rows": int(steps.dense_rows[index]),
                "h2d_bytes": int(steps.h2d_bytes[index]),
                "bound": BOUNDS[int(steps.bound[index])],
            },
        )
        for index in chosen
    ]


def check_no_overlap(slices: Iterable[Slice]) -> None:
    """Raise RunFailed when two slices of one track overlap or one ends before it starts."""
    ends: dict[str, int] = {}
    for item in sorted(slices, key=lambda item: (item.track, item.start_ps, item.end_ps)):
        if item.end_ps < item.start_ps or item.start_ps < ends.get(item.track, item.start_ps):
            raise RunFailed(f"timeline: {item.name} overlaps another slice on track {item.track}")
        ends[item.track] = item.end_ps


def waiting_slices(slices: Iterable[Slice]) -> list[Slice]:
    """Return where compute stood still between a layer's QKV, or prediction, and its attention.

    The pipeline puts nothing else between them but the wait for the layer's transfer.
    """
    asked: dict[tuple[Any, Any], int] = {}
    found = []
    for item in slices:
        if item.track != "compute" or "layer" not in item.args:
            continue
        place = (item.args.get("step"), item.args["layer"])
        if stage_of(item) in ("qkv", "prediction"):
            asked[place] = item.end_ps
        elif stage_of(item) == "attention" and item.start_ps > asked.get(place, item.start_ps):
            args = {**item.args, "stage": "transfer_wait"}
            found.append(Slice("compute", "wait", asked[place], item.start_ps, args))
    return found


def stage_of(item: Slice) -> str:
    """Return the stage that a slice shows; a link's slice stands for its link."""
    if item.track in TRACKS and TRACKS[item.track].process == LINKS:
        return item.track
    return str(item.args.get("stage", item.name))


def look_of(item: Slice) -> Look:
    """Return label and colour of a slice, its layer's number behind the label."""
    track = TRACKS.get(item.track)
    look = LOOKS.get(stage_of(item)) or Look(plain(item.name), track.colour if track else GREY)
    layer = item.args.get("layer")
    return look if layer is None else Look(f"{look.label} {layer}", look.colour)


def _names(lines: Mapping[str, int]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number, process in enumerate((STREAMS, LINKS), start=1):
        events.append(_meta("process_name", number, 0, {"name": process}))
        events.append(_meta("process_sort_index", number, 0, {"sort_index": number}))
    for name, line in lines.items():
        title = TRACKS[name].title if name in TRACKS else plain(name)
        events.append(_meta("thread_name", _process(name), line, {"name": title}))
        events.append(_meta("thread_sort_index", _process(name), line, {"sort_index": line}))
    return events


def _process(track: str) -> int:
    return 2 if track in TRACKS and TRACKS[track].process == LINKS else 1


def _meta(kind: str, process: int, line: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": line, "args": args}


def _event(item: Slice, line: int) -> dict[str, Any] | None:
    """Return one complete event in microseconds, None for less than a nanosecond.

    Both ends are cut to whole nanoseconds, the viewers' clock, so that neighbours cannot overlap
    by rounding.
    """
    start_ns, end_ns = item.start_ps // PS_PER_NS, item.end_ps // PS_PER_NS
    if end_ns == start_ns:
        return None
    look = look_of(item)
    return {
        "ph": "X",
        "name": look.label,
        "cat": item.track,
        "ts": start_ns / NS_PER_US,
        "dur": (end_ns - start_ns) / NS_PER_US,
        "pid": _process(item.track),
        "tid": line,
        "cname": look.colour,
        "args": {key: plain(v) if isinstance(v, str) else v for key, v in item.args.items()},
    }


def _about(result: RunResult) -> dict[str, Any]:
    scenario = result.scenario
    traces = describe_traces(scenario)
    return {
        "profile": plain(scenario.profile.name),
        "engine": plain(scenario.engine_name),
        "model": plain(scenario.model.name),
        "scheme": plain(scenario.scheme.name),
        "trace": plain(str(traces["name"])),
        "trace_origin": traces["origin"],
        "clock": "simulated",
    }
