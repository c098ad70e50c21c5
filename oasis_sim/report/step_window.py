"""A few layers of one decode step, cut out of a run's timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAYERS_SHOWN = 4


def step_window(timeline: Mapping[str, Any], layers: int = LAYERS_SHOWN) -> dict[str, Any] | None:
    """Return slices of some layers in the middle of the second recorded step, None without any.

    Times are microseconds from the left edge. `timeline` is what `timeline.json` holds.
    """
    slices = [
        event
        for event in timeline["traceEvents"]
        if event["ph"] == "X" and {"layer", "step", "stage"} <= event["args"].keys()
    ]
    steps = sorted({event["args"]["step"] for event in slices})
    if not steps:
        return None
    step = steps[min(1, len(steps) - 1)]
    every = 1 + max(event["args"]["layer"] for event in slices)
    first = max(0, (every - layers) // 2)
    frame = [
        event
        for event in slices
        if event["cat"] == "compute"
        and event["args"]["step"] == step
        and first <= event["args"]["layer"] < first + layers
    ]
    if not frame:
        return None
    left = min(event["ts"] for event in frame)
    right = max(event["ts"] + event["dur"] for event in frame)
    return {
        "step": step,
        "first_layer": first,
        "last_layer": min(first + layers, every) - 1,
        "length_us": round(right - left, 3),
        "spans": _spans(slices, left, right),
    }


def _spans(slices: Sequence[Mapping[str, Any]], left: float, right: float) -> list[dict[str, Any]]:
    found = []
    for event in slices:
        start, end = max(event["ts"], left), min(event["ts"] + event["dur"], right)
        if end > start:
            found.append(
                {
                    "track": event["cat"],
                    "stage": event["args"]["stage"],
                    "layer": event["args"]["layer"],
                    "start_us": round(start - left, 3),
                    "length_us": round(end - start, 3),
                }
            )
    return found
