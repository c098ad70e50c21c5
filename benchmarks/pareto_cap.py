"""Captured attention mass and agreement against step time: fixed and adaptive caps, larger pools.

    python benchmarks/pareto_cap.py [--trace NAME ...] [--all] [--svg docs/pareto-cap.svg]

Qwen3-8B on one H200, engine `gpu_exec`, context 8K, on every shipped trace (recordings of another
model are mapped on its layers and heads). Two loads: `steady`, 64 rows in every step, and `mixed`,
128 requests of log-normal lengths that end one after the other, so that the batch shrinks to one
row. Steps with prefill do not count. Step time, mass and agreement are means over output tokens.
The fixed cap, with the published eviction, is measured at ratios 0.01 to 0.2, and 0.5 and 1; `mass
+` and `agreement +` are the distance above the line through the best fixed caps at equal step time;
GB are HBM of one request. `by attention` is a fixed cap that evicts the least attended block;
`adaptive, published eviction` is an adaptive cap without this and without worthwhile fetches alone.

Prints the table of docs/schemes.md (`--all`: every case, with the fixed caps that it beats: those
that take more time and capture no more mass). `--svg` draws the picture, the same bytes each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from oasis_sim.engine import RunResult, Scenario, simulate
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.report.plotfile import STYLE, save_figure
from oasis_sim.residency.stats import RECENT_BLOCKS, SINK_BLOCKS
from oasis_sim.scheme import Scheme, load_scheme, with_options
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.units import PS_PER_MS
from oasis_sim.workload import Workload, closed_loop

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDED: Mapping[str, Any] = MappingProxyType(
    {
        "budget_tokens": 1024,
        "sink_blocks": SINK_BLOCKS,
        "recent_blocks": RECENT_BLOCKS,
        "recent_in_budget": True,
    }
)
"""The working set of `oasis-sim trace stats`, a quarter of the recorded contexts."""

OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "aime": MappingProxyType({"budget_tokens": 2048}),
        "smollm2-code": RECORDED,
        "smollm2-prose": RECORDED,
        "smollm2-question": RECORDED,
    }
)
"""Options of every scheme by trace."""

CONTEXT = 8192
STEADY_ROWS = 64
MIXED_ROWS = 128
MEDIAN_OUTPUT = 1024
LOG_SPREAD = 1.0
LOADS = ("steady", "mixed")
FIXED_RATIOS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2, 0.5, 1.0)
POOL_RATIOS = (0.02, 0.05, 0.1, 0.2)
BY_ATTENTION = "by attention"
PUBLISHED = "adaptive, published eviction"
POOLS = (1.5, 2.0)
SHOWN = (
    ("fixed", 0.02),
    ("fixed", 0.05),
    ("fixed", 0.2),
    ("pool 1.5x", 0.02),
    ("pool 2x", 0.02),
    (BY_ATTENTION, 0.02),
    (BY_ATTENTION, 0.05),
)
"""Fixed caps, by family and ratio, in the documented table of load `steady`."""

EQUAL_MASS = 0.0005
LESS_TIME = 0.99
"""What counts as equal mass, and as less time."""


@dataclass(frozen=True)
class Case:
    """Name a scheme of the picture; `family` is its line."""

    family: str
    label: str
    shown: bool
    scheme: Scheme


@dataclass(frozen=True)
class Point:
    """Hold what one case reached under one load; bytes are HBM of one request."""

    family: str
    label: str
    shown: bool
    step_ms: float
    mass: float
    agreement: float
    request_bytes: int


Studies = Mapping[tuple[str, str], Sequence[Point]]


def cases(options: Mapping[str, Any]) -> tuple[Case, ...]:
    """Return every scheme with some options; ratios that admit as many blocks only once."""
    found: list[Case] = []
    fixed = [("fixed", 1.0, ratio) for ratio in FIXED_RATIOS]
    pools = [(f"pool {pool:g}x", pool, ratio) for pool in POOLS for ratio in POOL_RATIOS]
    pools += [(BY_ATTENTION, 1.0, ratio) for ratio in POOL_RATIOS]
    seen: set[tuple[str, int]] = set()
    for family, pool, ratio in (*fixed, *pools):
        evict = "least_attended" if family == BY_ATTENTION else None
        parts = {"fetch_ratio": ratio, "pool_factor": pool, "evict": evict}
        scheme = with_options(load_scheme("oasis"), **parts, **options)
        cap = scheme.admission_cap
        if (family, cap) not in seen:
            seen.add((family, cap))
            label = f"{family}, cap {cap}"
            found.append(Case(family, label, (family, ratio) in SHOWN, scheme))
    for pool in (1.0, *POOLS):
        scheme = with_options(load_scheme("oasis-adaptive"), pool_factor=pool, **options)
        name = "adaptive" if pool == 1 else f"adaptive, pool {pool:g}x"
        found.append(Case(name, name, shown=True, scheme=scheme))
    scheme = with_options(load_scheme("oasis-adaptive"), evict="least_recently_selected", **options)
    found.append(Case(PUBLISHED, PUBLISHED, shown=True, scheme=scheme))
    return tuple(found)


def workload(load: str) -> Workload:
    """Return the requests of a load; all are there at the start."""
    if load == "steady":
        return closed_loop(STEADY_ROWS, CONTEXT, 1024)
    normal = NormalDist()
    places = [normal.inv_cdf((i + 0.5) / MIXED_ROWS) for i in range(MIXED_ROWS)]
    output = (MEDIAN_OUTPUT * np.exp(LOG_SPREAD * np.array(places))).astype(np.int64)
    return replace(closed_loop(MIXED_ROWS, CONTEXT, 1), name="mixed", output_tokens=output)


def measure(case: Case, trace: AttentionTrace, load: str) -> Point:
    """Simulate one case and average its steps without prefill."""
    result = simulate(
        Scenario(
            profile=load_profile("h200"),
            engine_name="gpu_exec",
            model=load_model("qwen3-8b"),
            scheme=case.scheme,
            traces=(trace,),
            workload=workload(load),
            concurrency=MIXED_ROWS,
            schedule_steps=0,
        )
    )
    size = result.memory.sparse_request_bytes
    return Point(case.family, case.label, case.shown, *averages(result), size)


def averages(result: RunResult) -> tuple[float, float, float]:
    """Return (step ms, mass, agreement), means over the output tokens of pure decode steps."""
    steps = result.steps
    decode = (steps.prefill_tokens == 0) & (steps.dense_rows == 0) & (steps.sparse_rows > 0)
    rows = steps.sparse_rows[decode]
    step_ms = (steps.end_ps - steps.start_ps)[decode] / PS_PER_MS
    columns = (step_ms, steps.mass[decode], steps.overlap[decode])
    first, second, third = (float(np.average(column, weights=rows)) for column in columns)
    return first, second, third


def gain(points: Sequence[Point], point: Point, metric: str = "mass") -> float:
    """Return the metric of a point above the fixed-cap line at equal step time.

    The line joins the best fixed caps in order of step time, and is level beyond its ends.
    """
    fixed = sorted((p for p in points if p.family == "fixed"), key=lambda p: p.step_ms)
    best = np.maximum.accumulate([getattr(p, metric) for p in fixed])
    line = np.interp(point.step_ms, [p.step_ms for p in fixed], best)
    return float(getattr(point, metric) - line)


def dominated(points: Sequence[Point], point: Point) -> tuple[Point, ...]:
    """Return the fixed caps that take more time than a point and capture no more mass.

    None when some fixed cap is as fast and captures as much: then the point is no improvement.
    """
    fixed = [p for p in points if p.family == "fixed"]
    if any(p.step_ms <= point.step_ms and p.mass >= point.mass - EQUAL_MASS for p in fixed):
        return ()
    return tuple(
        p
        for p in fixed
        if p.step_ms * LESS_TIME > point.step_ms and p.mass <= point.mass + EQUAL_MASS
    )


def study(trace_name: str, load: str) -> tuple[Point, ...]:
    """Measure every case on one trace under one load."""
    trace = load_trace(trace_name)
    return tuple(measure(case, trace, load) for case in cases(OPTIONS[trace_name]))


def full_table(studies: Studies) -> Iterator[str]:
    """Yield a Markdown row per case and load."""
    yield "| trace, load | scheme | ms | mass | agreement | mass + | agreement + | beats | GB |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (trace, load), points in studies.items():
        for p in points:
            beats = ", ".join(q.label.removeprefix("fixed, cap ") for q in dominated(points, p))
            yield (
                f"| {trace}, {load} | {p.label} | {p.step_ms:.2f} | {p.mass:.4f} | "
                f"{p.agreement:.3f} | {gain(points, p):+.4f} | "
                f"{gain(points, p, 'agreement'):+.3f} | {beats} | {p.request_bytes / 1e9:.2f} |"
            )


def short_table(studies: Studies) -> Iterator[str]:
    """Yield a Markdown row per shown case; adaptive ones only where the load varies."""
    yield "| trace, load | scheme | GB | ms | mass | agreement | mass + | agreement + |"
    yield "|---|---|---|---|---|---|---|---|"
    for load in LOADS:
        for (trace, under), points in studies.items():
            for p in points if under == load else ():
                if p.shown and (load == "steady" or p.family.startswith("adaptive")):
                    yield (
                        f"| {trace}, {load} | {p.label} | {p.request_bytes / 1e9:.2f} | "
                        f"{p.step_ms:.2f} | {p.mass:.4f} | {p.agreement:.3f} | "
                        f"{gain(points, p):+.4f} | {gain(points, p, 'agreement'):+.3f} |"
                    )


MARKS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "fixed": {"color": "0.0", "linestyle": "-", "marker": "o"},
        "pool 1.5x": {"color": "0.55", "linestyle": "--", "marker": "s"},
        "pool 2x": {"color": "0.55", "linestyle": ":", "marker": "D"},
        BY_ATTENTION: {"color": "0.0", "linestyle": "-.", "marker": "x"},
        PUBLISHED: {"color": "0.0", "linestyle": "", "marker": "+", "markersize": 8},
        "adaptive": {"color": "0.0", "linestyle": "", "marker": "*", "markersize": 11},
        "adaptive, pool 1.5x": {
            "color": "0.0",
            "linestyle": "",
            "marker": "^",
            "fillstyle": "none",
        },
        "adaptive, pool 2x": {"color": "0.0", "linestyle": "", "marker": "v", "fillstyle": "none"},
    }
)
"""Lines told apart by mark and stroke, not by colour."""


def draw(studies: Studies, path: Path) -> None:
    """Draw mass and agreement against step time: a column per trace, two rows per load."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    traces = list(dict.fromkeys(trace for trace, _ in studies))
    with mpl.rc_context(dict(STYLE)):
        figure = Figure(figsize=(3.0 * len(traces), 9.6), layout="constrained")
        grid = figure.subplots(2 * len(LOADS), len(traces), squeeze=False)
        for column, trace in enumerate(traces):
            for row, load in enumerate(LOADS):
                points = studies[trace, load]
                panel(grid[2 * row][column], points, "mass")
                panel(grid[2 * row + 1][column], points, "agreement")
                grid[2 * row][column].set_title(f"{trace}, {load}", fontsize=9)
        for row in range(2 * len(LOADS)):
            grid[row][0].set_ylabel("agreement" if row % 2 else "captured attention mass")
        for axes in grid[-1]:
            axes.set_xlabel("step time (ms)")
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(MARKS) // 2)
        save_figure(figure, path)


def panel(axes: Axes, points: Sequence[Point], metric: str) -> None:
    """Draw every family of one load into one panel."""
    for family, style in MARKS.items():
        chosen = [p for p in points if p.family == family]
        values = [getattr(p, metric) for p in chosen]
        look = {"label": family, "markersize": 4, "linewidth": 1, **style}
        axes.plot([p.step_ms for p in chosen], values, **look)
    # Without any admission far less is captured: that point lies below the picture.
    seen = [getattr(p, metric) for p in points if not p.label.endswith("cap 0")]
    margin = 0.08 * (max(seen) - min(seen))
    axes.set_ylim(min(seen) - margin, max(seen) + margin)
    axes.set_xscale("log")
    axes.minorticks_off()
    low, high = min(p.step_ms for p in points), max(p.step_ms for p in points)
    ticks = np.geomspace(low, high, 4)
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])


def main() -> None:
    """Measure, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", action="append", choices=list(OPTIONS), help="default: all")
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--svg", type=Path, help="draw the picture into this file")
    arguments = parser.parse_args()
    names = arguments.trace or list(OPTIONS)
    studies = {(name, load): study(name, load) for name in names for load in LOADS}
    print("\n".join((full_table if arguments.all else short_table)(studies)))
    if arguments.svg is not None:
        draw(studies, arguments.svg)


if __name__ == "__main__":
    main()
