"""What sharing a cap over heads or layers gains at equal blocks moved, on the shipped traces.

    python benchmarks/shared_caps.py [--evict least_attended]

For each trace and cap C: blocks that a head fetches per step and layer (mean of all), captured mass
and agreement, for caps of every head, of a layer (C x heads) and of the model (C x heads x layers).
`mass +` and `agreement +` are the distance above the line through the caps of every head at equally
many blocks. Walks in steady state, mapped on Qwen3-8B; budgets, sink and recent blocks as in
pareto_cap.py.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache

import numpy as np
from pareto_cap import OPTIONS

from oasis_sim.engine.walks import residency_rule
from oasis_sim.model import load_model
from oasis_sim.residency.walk import build_walk
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.trace import AttentionTrace, load_trace

CAPS = (1, 2, 3, 4, 6, 8, 12)
LINE = (0, *CAPS, 16, 25, 64)
SHARED = ("layer", "model")


@dataclass(frozen=True)
class Point:
    """Hold what a cap reached: blocks per head, layer and step, captured mass, agreement."""

    blocks: float
    mass: float
    agreement: float


@cache
def opened(name: str) -> AttentionTrace:
    """Open a trace once."""
    return load_trace(name)


def measure(name: str, cap: int, cap_over: str, evict: str) -> Point:
    """Walk one trace under one cap."""
    scheme = with_options(
        load_scheme("oasis"), cap_blocks=cap, cap_over=cap_over, evict=evict, **OPTIONS[name]
    )
    model = load_model("qwen3-8b")
    table = build_walk(opened(name), residency_rule(scheme), "draft", None, model)
    assert table.mass_mean is not None
    return Point(float(table.admitted_by_head.mean()), table.mass_mean, table.overlap_mean)


def rows(name: str, evict: str) -> list[str]:
    """Return the Markdown rows of one trace."""
    line = [measure(name, cap, "head", evict) for cap in LINE]
    blocks = [point.blocks for point in line]
    best = np.maximum.accumulate([point.mass for point in line])
    found = []
    for cap in CAPS:
        own = line[LINE.index(cap)]
        cells = f"{own.blocks:.2f} | {own.mass:.4f} | {own.agreement:.3f}"
        for way in SHARED:
            point = measure(name, cap, way, evict)
            mass = point.mass - np.interp(point.blocks, blocks, best)
            agreement = point.agreement - np.interp(
                point.blocks, blocks, [each.agreement for each in line]
            )
            cells += f" | {point.blocks:.2f} | {mass:+.4f} | {agreement:+.3f}"
        found.append(f"| {name} | {cap} | {cells} |")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--evict", default="least_recently_selected")
    arguments = parser.parse_args()
    heads = "head: blocks | mass | agreement"
    shared = " | ".join(f"{way}: blocks | mass + | agreement +" for way in SHARED)
    print(f"| trace | cap | {heads} | {shared} |")
    print("|---" * 11 + "|")
    for name in OPTIONS:
        print("\n".join(rows(name, arguments.evict)), flush=True)


if __name__ == "__main__":
    main()
