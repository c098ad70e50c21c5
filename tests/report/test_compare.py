"""Runs side by side: the numbers, which differ, and the reasons."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.engine import simulate
from oasis_sim.errors import InputError
from oasis_sim.hardware import Curve
from oasis_sim.metrics import summarise
from oasis_sim.report.compare import check_case, comparison_json, write_comparison
from oasis_sim.report.directory import write_run
from oasis_sim.report.rundir import read_summary
from oasis_sim.report.side_by_side import METRICS, Case, Line, inputs_that_differ, lines_of
from oasis_sim.report.why import limits_of, reasons
from oasis_sim.scheme import load_scheme, with_options
from tests.engine.scenarios import card, scenario
from tests.strategies import ABOVE_FLOAT


@cache
def summary_of(scheme: str, engine: str = "vllm", hbm_bytes: int = 8 * 10**9) -> dict[str, Any]:
    """Return the summary of a small run."""
    return summarise(simulate(scenario(scheme, engine, profile=card(hbm_bytes))))


@cache
def summary_of_slow_scan(scheme: str) -> dict[str, Any]:
    """Return the summary of a small run whose engine has a slow prediction, inline."""
    profile = card(8 * 10**9)
    inline = {"prediction_inline": True, "prediction_slowdown": None}
    costs = replace(profile.engine("vllm"), scan_efficiency=Curve.constant(1e-5), **inline)
    profile = replace(profile, engines={**profile.engines, "vllm": costs})
    return summarise(simulate(scenario(scheme, profile=profile)))


def cases(*schemes: str) -> tuple[Case, ...]:
    """Return small runs of schemes by name."""
    return tuple(Case(name, summary_of(name)) for name in schemes)


def test_a_run_against_itself_has_no_differences() -> None:
    """Equal runs: no input and no result differs, every ratio is 1."""
    pair = (Case("a", summary_of("oasis")), Case("b", summary_of("oasis")))
    found = comparison_json(pair)
    assert found["inputs_that_differ"] == []
    assert not any(metric["differs"] for metric in found["metrics"])
    ratios = {ratio for metric in found["metrics"] for ratio in metric["ratios_to_first"]}
    assert ratios <= {1.0, None}


def test_values_are_those_of_the_summaries() -> None:
    """Each case keeps its own number, and the ratio is against the first."""
    dense, oasis = summary_of("dense"), summary_of("oasis")
    found = {line.metric.name: line for line in lines_of(cases("dense", "oasis"))}
    rates = [each["throughput"]["output_tokens_per_s"] for each in (dense, oasis)]
    assert found["output_tokens_per_s"].values == tuple(rates)
    assert found["output_tokens_per_s"].ratios[1] == pytest.approx(rates[1] / rates[0], rel=1e-6)
    assert found["h2d_gb_per_step"].values[0] == 0
    assert found["h2d_gb_per_step"].values[1] > 0


def test_inputs_that_differ_are_named() -> None:
    """Only the parts that differ are listed, each with the values of all cases."""
    found = {each.name: each.values for each in inputs_that_differ(cases("oasis", "on-demand"))}
    assert found["scheme"] == ("oasis", "on-demand")
    assert found["lookahead"] == ("one_step", "none")
    assert "model" not in found


def test_inputs_outside_the_summary_scenario_are_named() -> None:
    """Parts of a scheme of the same name and sizes of the hardware are inputs, too."""
    summary, scheme = summary_of("oasis"), load_scheme("oasis")
    smaller = copy.deepcopy(dict(summary))
    smaller["tiers"]["hbm"]["capacity_bytes"] //= 2
    varied = with_options(scheme, cap_over="layer", evict="belady")
    pair = (Case("a", summary, scheme), Case("b", smaller, varied))
    found = {each.name: each.values for each in inputs_that_differ(pair)}
    assert set(found) == {"cap_over", "evict", "hbm_gib"}
    assert found["cap_over"] == ("head", "layer")
    assert found["hbm_gib"][0] == pytest.approx(2 * found["hbm_gib"][1], rel=1e-6)


def test_on_demand_is_bound_by_its_transfers() -> None:
    """The reason names the critical path, and the wait is the stage that grew."""
    limits = limits_of(summary_of("on-demand"))
    assert limits["time"] == "transfer"
    assert "on demand, on the critical path" in limits["time_why"]
    text = " ".join(reasons(cases("dense", "on-demand")))
    assert "transfer_wait +" in text


def test_prediction_in_the_foreground_is_a_stage_of_the_step() -> None:
    """A slow scan that an engine runs inline is what decides its steps; beside them it is not."""
    summary, beside = summary_of_slow_scan("oasis"), summary_of("oasis")
    assert "longest stage: prediction" in limits_of(summary)["time_why"]
    assert "prediction" not in limits_of(beside)["time_why"]
    text = " ".join(reasons((Case("a", beside), Case("b", summary))))
    assert "prediction +" in text
    assert "ms (beside the others in one of the two)" in text
    assert "prediction_inline" not in beside["scenario"]
    assert "prediction_inline" not in summary_of_slow_scan("on-demand")["scenario"]


def test_the_batch_is_limited_by_the_smallest_of_its_limits() -> None:
    """With much HBM the concurrency is reached, with little HBM the pool is full."""
    large = limits_of(summary_of("dense"))
    assert (large["batch"], "no more than 3 requests" in large["batch_why"]) == (
        "concurrency",
        True,
    )
    small = summary_of("dense", hbm_bytes=24_500_000)
    pool, each = (small["tiers"]["hbm"][key] for key in ("kv_pool_bytes", "dense_request_bytes"))
    assert pool // each < 3
    assert limits_of(small)["batch"] == "hbm"


@given(st.lists(st.none() | st.floats(0, 1e6), min_size=2, max_size=4), st.floats(0.001, 1000))
def test_what_differs_does_not_depend_on_the_unit(
    values: list[float | None], factor: float
) -> None:
    """Scaling all values changes neither the verdict nor the ratios."""
    line = Line(METRICS[0], tuple(values))
    scaled = Line(METRICS[0], tuple(None if v is None else v * factor for v in values))
    present = [value for value in values if value]
    spread = (max(present) - min(present)) / max(present) if present else 0.0
    if all(value > 1e-3 for value in present) and abs(spread - 0.01) > 1e-6:
        assert line.differs == scaled.differs
    assert line.differs == Line(METRICS[0], tuple(reversed(values))).differs


def keep(place: Path, summary: str) -> None:
    """Write a run directory around the text of a summary."""
    write_run(place, {"summary.json": summary.encode(), "config.yaml": b"tp: 1\n"}, "")


def test_a_missing_number_differs() -> None:
    """None beside a number is a difference, None beside None is none."""
    assert Line(METRICS[0], (None, 1.0)).differs
    assert not Line(METRICS[0], (None, None)).differs
    assert Line(METRICS[0], (None, 1.0)).ratios == (None, None)


def test_long_names_stand_above_the_table_once() -> None:
    """Long names are letters in header and reasons, short ones stay; JSON keeps the names."""
    names = ("oasis-qwen3-8b-h100-48a813f446", "dense-qwen3-8b-h100-6ae9705c98")
    pair = tuple(Case(name, summary_of(name.split("-")[0])) for name in names)
    stream = io.StringIO()
    write_comparison(pair, "table", stream)
    assert all(stream.getvalue().count(name) == 1 for name in names)
    assert "B / A" in stream.getvalue()
    assert "- B against A: " in stream.getvalue()
    assert [each["name"] for each in comparison_json(pair)["cases"]] == list(names)


def test_a_damaged_summary_is_refused() -> None:
    """A summary without one of the numbers is named with what is missing."""
    damaged = copy.deepcopy(summary_of("oasis"))
    del damaged["steps"]["step_ms"]
    with pytest.raises(InputError, match="lacks a number: step_mean_ms"):
        lines_of((Case("good", summary_of("oasis")), Case("bad", damaged)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "has no summary.json"),
        ("[]", "is not a summary of version 1"),
        ('{"schema_version": 2}', "is not a summary of version 1"),
        ('{"schema_version": 1}', "has no scenario, throughput"),
        ("{", "summary.json"),
    ],
)
def test_what_is_no_run_directory_is_refused(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    """Each mistake is one clear line."""
    if content is not None:
        keep(tmp_path, content)
    with pytest.raises(InputError, match=problem):
        read_summary(tmp_path)


@pytest.mark.parametrize("of", [summary_of, summary_of_slow_scan])
def test_a_summary_survives_its_file(tmp_path: Path, of: Callable[[str], dict[str, Any]]) -> None:
    """What is read back compares equal to what was simulated."""
    summary = of("oasis")
    keep(tmp_path, json.dumps(summary))
    assert read_summary(tmp_path) == summary


def test_long_times_are_compared_in_seconds() -> None:
    """A TTFT of minutes is not shown in milliseconds, nor under a name that says so."""
    slow = copy.deepcopy(summary_of("oasis"))
    slow["latency"]["ttft_ms"]["mean"] = 159_702.0
    stream = io.StringIO()
    write_comparison((Case("fast", summary_of("oasis")), Case("slow", slow)), "table", stream)
    line = next(line for line in stream.getvalue().splitlines() if "ttft" in line)
    assert ["ttft_mean_s", "s", "159.7"] == [line.split()[i] for i in (0, 1, 3)]
    assert "ttft_mean_ms" in json.dumps(comparison_json((Case("slow", slow),)))


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all parts of nested mappings."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [each for key, item in value.items() for each in leaves(item, (*path, key))]
    return found


@given(st.data())
def test_a_damaged_summary_is_refused_or_shown(data: st.DataObject) -> None:
    """With any one part missing or replaced, it is an InputError or a table, never a crash."""
    summary = copy.deepcopy(summary_of("oasis"))
    path = data.draw(st.sampled_from(leaves(summary)))
    part = summary
    for key in path[:-1]:
        part = part[key]
    junk = data.draw(st.none() | st.just("gone") | st.integers(0, 2) | st.text() | st.just([]))
    if junk == "gone":
        del part[path[-1]]
    else:
        part[path[-1]] = junk
    try:
        case = check_case(Case("junk", summary))
    except InputError as error:
        assert "junk" in str(error)
        return
    for output_format in ("table", "json", "csv"):
        write_comparison((Case("good", summary_of("oasis")), case), output_format, io.StringIO())


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ('{"files": {"summary.json": {"sha256": "0"}}}', "is not the file that manifest.json"),
        ('{"files": {}}', "does not list summary.json"),
        ("[]", "does not list summary.json"),
        ('{"files": {"summary.json": {"sha256": null}}}', "does not list summary.json"),
    ],
)
def test_a_summary_that_is_not_the_run_s_is_refused(
    tmp_path: Path, manifest: str, said: str
) -> None:
    """An edited summary.json is found by the manifest, as in a replay."""
    keep(tmp_path, json.dumps(summary_of("oasis")))
    assert summary_of("oasis") == read_summary(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match=said):
        read_summary(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "summary.json"])
def test_a_run_that_is_not_complete_is_refused(tmp_path: Path, name: str) -> None:
    """Without its manifest, or without a file that the manifest lists."""
    keep(tmp_path, json.dumps(summary_of("oasis")))
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"no (manifest|such file|summary)") as caught:
        read_summary(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("path", "junk"),
    [
        ("notes", [-1]),
        ("notes", "text"),
        ("throughput.output_tokens_per_s", True),
        ("throughput.output_tokens_per_s", ABOVE_FLOAT),
        ("latency.tpot_ms.p99_has_too_few_samples", 1),
        ("tiers.hbm.peak_bytes", False),
    ],
)
def test_values_of_another_kind_are_refused(tmp_path: Path, path: str, junk: Any) -> None:
    """Hashed anew, a summary is still checked: kinds of values, each with its dotted path."""
    summary = copy.deepcopy(summary_of("oasis"))
    *parents, last = path.split(".")
    part = summary
    for key in parents:
        part = part[key]
    assert last in part
    part[last] = junk
    keep(tmp_path, json.dumps(summary))
    with pytest.raises(InputError, match=rf"summary\.json: {path}: is .*; run again"):
        read_summary(tmp_path)


def test_a_text_where_a_number_belongs_prints_nothing() -> None:
    """Every format is tried before the first line is shown."""
    for part, key in (("throughput", "output_tokens_per_s"), ("scenario", "trace")):
        damaged = copy.deepcopy(summary_of("oasis"))
        damaged[part][key] = "12"
        with pytest.raises(InputError, match="bad: its summary"):
            check_case(Case("bad", damaged))
