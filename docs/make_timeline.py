"""Draw a few layers of a run's timeline as SVG: the picture of the README.

    python docs/make_timeline.py RUN_DIR docs/timeline.svg

Needs matplotlib (`pip install -e '.[plot]'`). The same run gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS_SHOWN = 7
TRACKS = (
    ("compute", "compute"),
    ("prediction", "prediction"),
    ("selection", "selection"),
    ("transfer", "transfer"),
    ("pcie_h2d", "PCIe, host to GPU"),
)
COLOURS = {
    "qkv": "#1b7837",
    "attention": "#4dac26",
    "output_ffn": "#a6d96a",
    "transfer_wait": "#f6c945",
    "prediction": "#6a8fc7",
    "selection": "#9a86c8",
    "transfer": "#d7301f",
}
NAMES = {
    "qkv": "QKV",
    "attention": "attention",
    "output_ffn": "output and FFN",
    "transfer_wait": "waiting for a transfer",
    "prediction": "prediction",
    "selection": "selection",
    "transfer": "transfer of blocks",
}
LABELLED = {"attention", "transfer"}
BAR_HEIGHT = 0.72


@dataclass(frozen=True)
class Bar:
    """Hold one drawn slice; times are microseconds from the left edge."""

    track: str
    stage: str
    layer: int
    start_us: float
    length_us: float


def main() -> None:
    """Read the run's timeline and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("svg", type=Path)
    arguments = parser.parse_args()
    document = json.loads((arguments.run_dir / "timeline.json").read_text(encoding="utf-8"))
    bars, span_us = choose_bars(document["traceEvents"])
    draw(bars, span_us, caption_of(document["otherData"]), arguments.svg)


def choose_bars(events: Sequence[dict[str, Any]]) -> tuple[list[Bar], float]:
    """Return the bars of some layers in the middle of the second step, and their span."""
    slices = [event for event in events if event["ph"] == "X" and "layer" in event["args"]]
    steps = sorted({event["args"]["step"] for event in slices})
    step = steps[min(1, len(steps) - 1)]
    layers = 1 + max(event["args"]["layer"] for event in slices)
    first = max(0, (layers - LAYERS_SHOWN) // 2)
    frame = [
        event
        for event in slices
        if event["cat"] == "compute"
        and event["args"]["step"] == step
        and first <= event["args"]["layer"] < first + LAYERS_SHOWN
    ]
    left = min(event["ts"] for event in frame)
    right = max(event["ts"] + event["dur"] for event in frame)
    bars = []
    for event in slices:
        start, end = max(event["ts"], left), min(event["ts"] + event["dur"], right)
        if end > start:
            args = event["args"]
            bars.append(Bar(event["cat"], args["stage"], args["layer"], start - left, end - start))
    return bars, right - left


def caption_of(about: dict[str, str]) -> str:
    """Say what was run and where its attention comes from."""
    origin = f"{about['trace_origin']} trace {about['trace']}"
    return (
        f"{about['scheme']} on {about['model']}, {about['profile']}, engine {about['engine']}; "
        f"{origin}; simulated time"
    )


def draw(bars: Sequence[Bar], span_us: float, caption: str, svg: Path) -> None:
    """Write the picture with fixed identifiers and no date."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "oasis-sim", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(figsize=(9.6, 3.1))
    rows = {track: len(TRACKS) - 1 - row for row, (track, _) in enumerate(TRACKS)}
    for bar in bars:
        if bar.track not in rows:
            continue
        row = rows[bar.track]
        span = [(bar.start_us, bar.length_us)]
        place = (row - BAR_HEIGHT / 2, BAR_HEIGHT)
        colour = COLOURS[bar.stage]
        axes.broken_barh(span, place, facecolors=colour, edgecolor="white", linewidth=0.5)
        if bar.stage in LABELLED and bar.length_us > span_us / 25:
            middle = bar.start_us + bar.length_us / 2
            axes.text(middle, row, str(bar.layer), ha="center", va="center", color="white")
    axes.set_yticks(list(rows.values()), [title for _, title in TRACKS])
    axes.set_xlim(0, span_us)
    axes.set_xlabel("microseconds (numbers in bars: layer)")
    axes.set_title(caption, fontsize=9, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    shown = {bar.stage for bar in bars}
    handles = [Patch(color=COLOURS[stage], label=NAMES[stage]) for stage in NAMES if stage in shown]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(svg, metadata={"Date": None})


if __name__ == "__main__":
    main()
