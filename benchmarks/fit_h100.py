"""Calibrate the `vllm` engine of a profile against the published Table 2 and Figure 11 at 16K.

    python benchmarks/fit_h100.py                          # published / simulated / error
    python benchmarks/fit_h100.py --set launch.step='4 ms' --set attention_efficiency.share=0.5
    python benchmarks/fit_h100.py --fit attention,scan,select_head --out-yaml
    python benchmarks/fit_h100.py --list                   # constants that --fit knows

Blocks per head, layer and step come from the published Table 2 (constant over steps and layers)
unless `--trace` names an attention trace. Constants are fitted within bounds that keep them
physically meaningful; every residual is a relative error divided by its tolerance (5 % in
Table 2, 7 % in Figure 11). Only 16K contexts and Table 2 are used: nothing else may be.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import yaml

from oasis_sim.engine.costs import CostModel, GpuShare
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import Quality, RequestLog, StepLog
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.serving import ServingLoop
from oasis_sim.engine.stretch import WalkTables
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.engine.window import Window
from oasis_sim.errors import OasisError
from oasis_sim.fileio import Fields, find_input, load_yaml, loads_yaml
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.hardware.load_engine import read_engine
from oasis_sim.paper import fig11, table2
from oasis_sim.paper.published import load_published
from oasis_sim.paper.setup import Setup
from oasis_sim.units import parse_bandwidth, parse_bytes, parse_time

ENGINE = "vllm"
DEFAULT_RATIO = 0.05
TABLE_PERIOD = 64
TOLERANCE = {"table2": 0.05, "fig11": 0.07}
IMPOSSIBLE = 100.0  # residual of constants with which a run cannot be made


@dataclass(frozen=True)
class Knob:
    """Name a constant to fit: its paths in the engine's YAML, bounds and unit ("" for none)."""

    paths: tuple[str, ...]
    low: float
    high: float
    unit: str = ""


KNOBS = {
    "linear_few": Knob(("linear_efficiency.share[0:2]",), 0.5, 1.0),
    "linear_128": Knob(("linear_efficiency.share[2]",), 0.4, 1.0),
    "linear_192": Knob(("linear_efficiency.share[3]",), 0.4, 1.0),
    "linear_many": Knob(("linear_efficiency.share[4:]",), 0.4, 1.0),
    "experts_1": Knob(("expert_efficiency.share[0]",), 0.2, 1.0),
    "experts_2": Knob(("expert_efficiency.share[1]",), 0.2, 1.0),
    "experts_6": Knob(("expert_efficiency.share[2]",), 0.2, 1.0),
    "experts_12": Knob(("expert_efficiency.share[3]",), 0.2, 1.0),
    "attention": Knob(("attention_efficiency.share",), 0.1, 0.95),
    "dense_attention": Knob(("dense_attention_efficiency.share",), 0.3, 0.95),
    "scan": Knob(("scan_efficiency.share",), 0.05, 0.95),
    "select_fixed": Knob(("selection.fixed",), 2.0, 200.0, "us"),
    "select_head": Knob(("selection.per_head_ns",), 0.0, 1500.0),
    "select_candidate": Knob(("selection.per_candidate_ps",), 0.0, 5000.0),
    "draft_layers": Knob(("draft_layers",), 0.5, 6.0),
    "gap": Knob(("launch.gap",), 0.0, 5.0, "us"),
    "step": Knob(("launch.step",), 0.0, 15.0, "ms"),
    "dense_step": Knob(("launch.dense_step",), 0.0, 5.0, "ms"),
    "dense_request": Knob(("launch.dense_request",), 0.0, 200.0, "us"),
    "request": Knob(("launch.request",), 0.0, 200.0, "us"),
    "prefill": Knob(("prefill.efficiency",), 0.4, 0.9),
    "collective": Knob(("collective",), 2.0, 60.0, "us"),
    "prediction_slows": Knob(
        ("prediction_slowdown.linear.factor", "prediction_slowdown.attention"), 1.0, 3.0
    ),
    "selection_slows": Knob(
        ("selection_slowdown.linear.factor", "selection_slowdown.attention"), 1.0, 3.0
    ),
    "gather_rate": Knob(("transports.sm_gather.rate[1:]",), 20.0, 55.0, "GB/s"),
    "gather_fixed": Knob(("transports.sm_gather.fixed",), 0.0, 400.0, "us"),
    "gather_slows": Knob(
        (
            "transports.sm_gather.slowdown.linear.factor",
            "transports.sm_gather.slowdown.attention",
        ),
        1.0,
        2.0,
    ),
    "gather_slows_scan": Knob(("transports.sm_gather.slowdown.prediction",), 1.0, 3.0),
    "reserved": Knob(("reserved",), 2048.0, 8192.0, "MiB"),
}


PARSERS: dict[str, Callable[[str], float]] = {
    "us": parse_time,
    "ms": parse_time,
    "GB/s": parse_bandwidth,
    "MiB": parse_bytes,
}


# Constants: a tree of plain YAML values ------------------------------------------------------


def read_constants(profile: str) -> dict[str, Any]:
    """Return the engine's section of a profile as it is written."""
    document = load_yaml(find_input(profile, "profile"))
    return dict(document.value["engines"][ENGINE])


def engine_profile(base: HardwareProfile, constants: dict[str, Any]) -> HardwareProfile:
    """Return the profile with these constants, checked as a profile file is."""
    fields = Fields.of(loads_yaml(yaml.safe_dump(constants), "constants"))
    costs = read_engine(ENGINE, fields)
    fields.finish()
    return replace(base, engines={**base.engines, ENGINE: costs})


def place_of(tree: Any, path: str) -> tuple[Any, str, slice | None]:
    """Return (holder, key, part of the list) that a path like `a.b[2]` or `a.b[1:]` names."""
    *parents, last = path.split(".")
    for name in parents:
        tree = tree[name]
    match = re.fullmatch(r"(\w+)(?:\[(\d+)(:?)(\d*)\])?", last)
    if match is None or match[1] not in tree:
        raise SystemExit(f"no constant {path!r}; see --list and the profile's engine section")
    key, first, colon, end = match.groups()
    if first is None:
        return tree, key, None
    stop = (int(end) if end else None) if colon else int(first) + 1
    return tree, key, slice(int(first), stop)


def assign(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a constant; a list (or the part of it that is named) gets the value everywhere."""
    holder, key, part = place_of(tree, path)
    if isinstance(holder[key], list):
        items = range(len(holder[key]))[part or slice(None)]
        for index in items:
            holder[key][index] = value
    else:
        holder[key] = value


def current(tree: dict[str, Any], knob: Knob) -> float:
    """Return a knob's value in its unit (the last one where a list holds several)."""
    holder, key, part = place_of(tree, knob.paths[0])
    found = holder[key]
    if isinstance(found, list):
        if not found[part or slice(None)]:
            raise SystemExit(f"{knob.paths[0]} names no entry of {found}")
        found = found[part or slice(None)][-1]
    if not knob.unit:
        return float(found)
    parse = PARSERS[knob.unit]
    return float(parse(str(found))) / float(parse(f"1 {knob.unit}"))


def written(value: float, unit: str) -> float | str:
    """Return a value as the profile holds it: four digits, bytes as whole MiB."""
    if not unit:
        return float(f"{value:.4g}")
    return f"{round(value)} {unit}" if unit == "MiB" else f"{float(f'{value:.4g}')} {unit}"


def with_values(
    tree: dict[str, Any], names: Sequence[str], values: Sequence[float]
) -> dict[str, Any]:
    """Return a copy of the constants with these knobs set."""
    tree = copy.deepcopy(tree)
    for name, value in zip(names, values, strict=True):
        knob = KNOBS[name]
        for path in knob.paths:
            assign(tree, path, written(value, knob.unit))
    return tree


# Runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Name one run: a fetch ratio of Table 2, or a point of Figure 11."""

    ratio: float = DEFAULT_RATIO
    point: fig11.Point | None = None

    @property
    def group(self) -> str:
        """Return the name that `--only` knows the case by."""
        if self.point is None:
            return "table2"
        return f"{self.point.model}-{self.point.system}"


CASES = (
    *(Case(ratio) for ratio in table2.RATIOS),
    *(
        Case(point=point)
        for point in fig11.points(fig11.CONTEXT_TOKENS)
        if point.system not in fig11.OWN_ENGINES
    ),
)
GROUPS = tuple(dict.fromkeys(case.group for case in CASES))


@dataclass(frozen=True)
class Measured:
    """Hold one published metric beside the simulated one."""

    label: str
    metric: str
    published: float
    simulated: float
    tolerance: float

    @property
    def error(self) -> float:
        """Return the relative error."""
        return self.simulated / self.published - 1.0


def evaluate(case: Case, profile: HardwareProfile, trace: str | None) -> list[Measured]:
    """Run one case and compare every metric that is published for it."""
    setup = Setup(profile, ENGINE, load_traces(trace))
    published = load_published()
    if case.point is None:
        steps, _ = run(table2.scenario(setup, case.ratio), case.ratio)
        found, table = table2.metrics(steps), table2.NAME
        keys: dict[str, Any] = {"fetch_ratio": case.ratio}
    else:
        steps, requests = run(fig11.scenario(setup, case.point), case.ratio)
        found, table = fig11.metrics(steps, requests, case.point.concurrency), fig11.NAME
        keys = case.point.keys
    label = " ".join(str(value) for key, value in keys.items() if key != "context_tokens")
    return [
        Measured(f"{table} {label}", metric, known, value, TOLERANCE[table])
        for metric, value in found.items()
        if value is not None and (known := published.value(table, keys, metric)) is not None
    ]


def run(scenario: Scenario, ratio: float) -> tuple[StepLog, RequestLog]:
    """Simulate without timeline and block moves, which the fit does not need."""
    cost = CostModel(scenario.profile, ENGINE, scenario.model, scenario.scheme, scenario.tp)
    workload = scenario.workload
    plan = plan_memory(
        cost,
        int((workload.prompt_tokens + workload.output_tokens).max()),
        scenario.host_bytes,
    )
    if scenario.traces or not scenario.scheme.offload:
        walks = build_walks(scenario.traces, scenario.scheme, cost.share, None, 0)
    else:
        walks = published_walks(cost.share, ratio)
    book = RequestBook(workload, scenario.concurrency, scenario.think_ps)
    window = Window(0, 1 << 62, None)
    loop = ServingLoop(cost, plan, walks, book, window, scenario.max_steps, None)
    loop.run()
    block_bytes = cost.share.block_bytes(scenario.scheme)
    return loop.recorder.finish(block_bytes, walks.tables.copies), book.log()


def published_walks(share: GpuShare, ratio: float) -> Walks:
    """Return walks that fetch Table 2's blocks per head, layer and step, spread over steps."""
    metric = "fetched_blocks_per_head_layer"
    blocks = load_published().value("table2", {"fetch_ratio": ratio}, metric) or 0.0
    whole = np.floor(np.arange(TABLE_PERIOD + 1) * blocks * share.kv_heads)
    moved = np.diff(whole).astype(np.int64)
    layers = share.model.layers
    tables = WalkTables(
        copies=np.array([share.tp], dtype=np.int64),
        group=np.zeros(layers, dtype=np.int64),
        group_size=np.array([layers], dtype=np.int64),
        admitted=moved[:, None, None],
        needed=moved * layers * share.tp,
        quality=np.ones((TABLE_PERIOD, 3)),
        rung_blocks=(moved * layers)[None, :, None],
        tokens=np.ones(TABLE_PERIOD, dtype=np.int64),
    )
    quality = Quality(None, None, None, None, None, "none: published volumes")
    return Walks(tables, (0,), (TABLE_PERIOD,), (), quality, 0)


@lru_cache(maxsize=4)
def load_traces(name: str | None) -> tuple[Any, ...]:
    """Return the named trace, or none."""
    if name is None:
        return ()
    from oasis_sim.trace import load_trace

    return (load_trace(name),)


Evaluate = Callable[[dict[str, Any]], list[Measured]]


@contextmanager
def evaluator(
    base: HardwareProfile, groups: Sequence[str], trace: str | None, jobs: int
) -> Iterator[Evaluate]:
    """Give a function from constants to all comparisons, over one or several processes."""
    cases = [case for case in CASES if case.group in groups]

    def all_cases(mapper: Callable[..., Any], constants: dict[str, Any]) -> list[Measured]:
        profile = engine_profile(base, constants)
        count = len(cases)
        parts = mapper(evaluate, cases, [profile] * count, [trace] * count)
        return [item for part in parts for item in part]

    if jobs == 1:
        yield lambda constants: all_cases(map, constants)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield lambda constants: all_cases(pool.map, constants)


# Fit and print -------------------------------------------------------------------------------


def fit(
    evaluate_all: Evaluate, constants: dict[str, Any], names: Sequence[str], most: int
) -> dict[str, Any]:
    """Return the constants with the named ones fitted by bounded least squares."""
    from scipy.optimize import least_squares

    low = np.array([KNOBS[name].low for name in names])
    high = np.array([KNOBS[name].high for name in names])
    start = np.array([current(constants, KNOBS[name]) for name in names])
    start = (np.clip(start, low, high) - low) / (high - low)

    count = len(evaluate_all(constants))

    def residuals(x: np.ndarray) -> np.ndarray:
        tree = with_values(constants, names, low + np.clip(x, 0, 1) * (high - low))
        try:
            found = evaluate_all(tree)
        except OasisError as error:
            print(f"  cannot run: {error}", file=sys.stderr)
            return np.full(count, IMPOSSIBLE)
        errors = np.array([item.error / item.tolerance for item in found])
        worst = float(np.abs(errors).max())
        print(f"  cost {0.5 * float(errors @ errors):.3f}  worst {worst:.2f}", file=sys.stderr)
        return errors

    # Steps large enough to rise above the grain of whole requests and steps.
    solution = least_squares(
        residuals, np.clip(start, 0.01, 0.99), bounds=(0, 1), diff_step=0.02, max_nfev=most
    )
    return with_values(constants, names, low + solution.x * (high - low))


def show(found: Sequence[Measured]) -> None:
    """Print every comparison, then the means and the worst by group."""
    print(f"{'where':32}{'metric':22}{'published':>10}{'simulated':>11}{'error':>9}")
    for item in found:
        mark = " *" if abs(item.error) > item.tolerance else ""
        print(
            f"{item.label:32}{item.metric:22}{item.published:10.2f}{item.simulated:11.2f}"
            f"{100 * item.error:+8.1f}%{mark}"
        )
    print()
    groups: dict[str, list[float]] = {}
    for item in found:
        words = item.label.split()
        name = "table2" if words[0] == "table2" else " ".join(words[:3])
        groups.setdefault(name, []).append(abs(item.error))
    for name, errors in groups.items():
        print(f"{name:32}mean {100 * np.mean(errors):5.2f} %   worst {100 * max(errors):5.2f} %")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="h100", help="profile to start from")
    parser.add_argument("--trace", help="attention trace (default: the published volumes)")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups of {','.join(GROUPS)}")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--fit", metavar="NAMES", help="constants to fit, separated by commas")
    parser.add_argument("--max-evaluations", type=int, default=12, help="without those of slopes")
    parser.add_argument("--out-yaml", action="store_true", help="print the engine section")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="list the constants")
    return parser.parse_args()


def main() -> None:
    """Evaluate, or fit and evaluate."""
    options = arguments()
    constants = read_constants(options.profile)
    for setting in options.set:
        path, _, text = setting.partition("=")
        assign(constants, path, yaml.safe_load(text))
    if options.list:
        for name, knob in KNOBS.items():
            value = current(constants, knob)
            bounds = f"{knob.low:g} .. {knob.high:g} {knob.unit}"
            print(f"{name:20}{value:9g}   {bounds:22}{', '.join(knob.paths)}")
        return
    names = options.fit.split(",") if options.fit else []
    unknown = [name for name in names if name not in KNOBS]
    if unknown:
        raise SystemExit(f"unknown constants {', '.join(unknown)}; see --list")
    base = load_profile(options.profile)
    with evaluator(base, options.only.split(","), options.trace, options.jobs) as evaluate_all:
        started = time.time()
        if names:
            constants = fit(evaluate_all, constants, names, options.max_evaluations)
            for name in names:
                print(f"{name:20}{current(constants, KNOBS[name]):9g} {KNOBS[name].unit}")
        show(evaluate_all(constants))
        print(f"\n{time.time() - started:.1f} s", file=sys.stderr)
    if options.out_yaml:
        print(yaml.safe_dump({ENGINE: constants}, default_flow_style=None, sort_keys=False))


if __name__ == "__main__":
    main()
