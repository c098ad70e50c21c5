"""The Pareto picture of docs/schemes.md: what it says of the fixed cap, adaptive cap and pools."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from oasis_sim.trace import load_trace

ROOT = Path(__file__).resolve().parents[2]
VARYING = {"fixed", "adaptive"}
UNMEASURED = {"adaptive, pool 2x", "adaptive, published eviction"}
"""Families that stay out for the tests' time."""
RECORDINGS = ("smollm2-code", "smollm2-prose", "smollm2-question")


@cache
def pareto() -> ModuleType:
    """Import benchmarks/pareto_cap.py."""
    spec = importlib.util.spec_from_file_location("pareto_cap", ROOT / "benchmarks/pareto_cap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def points(trace_name: str, load: str) -> tuple[Any, ...]:
    """Measure documented cases of a trace; few of them where the load varies."""
    script = pareto()
    trace = load_trace(trace_name)
    return tuple(
        script.measure(case, trace, load)
        for case in script.cases(script.OPTIONS[trace_name])
        if case.shown and case.family not in UNMEASURED
        if load == "steady" or case.family in VARYING
    )


def of_family(found: tuple[Any, ...], family: str) -> tuple[Any, ...]:
    """Return the points of one family."""
    return tuple(point for point in found if point.family == family)


def documented() -> dict[tuple[str, str], list[float]]:
    """Return the numbers of the table in docs/schemes.md by (trace and load, scheme)."""
    rows = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        (row[0], row[1]): [float(cell) for cell in row[2:]]
        for row in cells
        if len(row) == 8 and row[0].endswith((", steady", ", mixed"))
    }


def test_a_larger_pool_dominates_fixed_caps_on_the_synthetic_trace() -> None:
    """Twice the pool at ratio 0.02: less time than the caps of 0.02 and 0.05, and more mass."""
    found = points("aime", "steady")
    (pool,) = of_family(found, "pool 2x")
    beaten = pareto().dominated(found, pool)
    assert [p.label for p in beaten[:2]] == ["fixed, cap 2", "fixed, cap 6"]
    assert pareto().gain(found, pool) > 0.005
    assert pareto().gain(found, pool, "agreement") > 0.1


@pytest.mark.parametrize("trace", RECORDINGS)
def test_a_larger_pool_dominates_fixed_caps_on_every_recording(trace: str) -> None:
    """1.5 times the pool at ratio 0.02 captures more mass than the cap of 0.05, in less time."""
    found = points(trace, "steady")
    (pool,) = of_family(found, "pool 1.5x")
    assert "fixed, cap 3" in [p.label for p in pareto().dominated(found, pool)]
    assert pool.mass > of_family(found, "fixed")[1].mass + 0.0005
    assert pool.step_ms < 0.92 * of_family(found, "fixed")[1].step_ms
    assert pool.agreement > of_family(found, "fixed")[1].agreement + 0.04


@pytest.mark.parametrize("trace", ["aime", *RECORDINGS])
@pytest.mark.parametrize("load", ["steady", "mixed"])
def test_the_adaptive_cap_captures_more_than_fixed_ones(trace: str, load: str) -> None:
    """More mass than fixed caps of equal step time, whether the batch varies or not."""
    found = points(trace, load)
    (adaptive,) = of_family(found, "adaptive")
    recorded = trace in RECORDINGS
    assert pareto().gain(found, adaptive) > (0.005 if recorded else 0.0001)
    if recorded:
        assert pareto().dominated(found, adaptive)[-1].step_ms > 2.0 * adaptive.step_ms


@pytest.mark.parametrize("trace", ["aime", *RECORDINGS])
def test_eviction_by_attention_gains_mass_under_a_small_fixed_cap(trace: str) -> None:
    """At ratio 0.02, in as much time as the published eviction takes."""
    found = points(trace, "steady")
    assert pareto().gain(found, of_family(found, "by attention")[0]) > 0.0001


@pytest.mark.parametrize("trace", ["aime", *RECORDINGS])
def test_adaptive_cap_with_a_larger_pool_dominates(trace: str) -> None:
    """With 1.5 times the pool: more mass than at equal time; caps that take longer are beaten."""
    found = points(trace, "steady")
    (adaptive,) = of_family(found, "adaptive, pool 1.5x")
    assert pareto().gain(found, adaptive) > 0.003
    assert pareto().gain(found, adaptive, "agreement") > 0.02
    assert pareto().dominated(found, adaptive)[-1].step_ms > 1.04 * adaptive.step_ms


@pytest.mark.parametrize("trace", ["aime", *RECORDINGS])
def test_the_table_in_the_documentation_is_what_the_script_measures(trace: str) -> None:
    """Mass and agreement to the last digit, times within 2 %, bytes as printed."""
    table = documented()
    for point in points(trace, "steady"):
        gigabytes, step_ms, mass, agreement, *_ = table[f"{trace}, steady", point.label]
        assert (mass, agreement) == (round(point.mass, 4), round(point.agreement, 3))
        assert gigabytes == round(point.request_bytes / 1e9, 2)
        assert step_ms == pytest.approx(point.step_ms, rel=0.02)


def test_the_picture_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    """The same points give the same SVG."""
    script = pareto()
    families = [*script.MARKS, "fixed"]
    line = tuple(
        script.Point(family, family, True, 10.0 + i, 0.9 + i / 100, 0.8 + i / 100, 1)
        for i, family in enumerate(families)
    )
    for name in ("one.svg", "two.svg"):
        script.draw({("aime", load): line for load in script.LOADS}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_only_points_off_the_line_dominate() -> None:
    """A hand-made line: a point below, on, and beyond it, and one that captures more for more."""
    script = pareto()

    def point(family: str, step_ms: float, mass: float) -> Any:
        return script.Point(family, family, True, step_ms, mass, mass, 0)

    line = (point("fixed", 10.0, 0.90), point("fixed", 12.0, 0.94))
    cases = {(11.0, 0.91): 0, (11.0, 0.95): 1, (9.0, 0.94): 2, (13.0, 0.95): 0, (13.0, 0.93): 0}
    for (step_ms, mass), beaten in cases.items():
        assert len(script.dominated(line, point("pool", step_ms, mass))) == beaten
    assert script.gain(line, point("pool", 11.0, 0.95)) == pytest.approx(0.03)
