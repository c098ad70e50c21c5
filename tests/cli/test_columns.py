"""docs/columns.md names the columns that the commands write, all of them and no others."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from oasis_sim.cli.main import main
from oasis_sim.plan.table import LEFT_OUT
from oasis_sim.trace import save_trace
from tests.documented_columns import documented, header, numbered, sections
from tests.strategies import make_trace

SMALL = ["--context", "200", "--output-tokens", "20", "--trace", "small.npz"]
LOOP = [*SMALL, "--concurrency", "2", "--budget", "64"]
RATE = [*SMALL, "--rate", "50", "--requests", "6", "--budget", "64"]
SUMMARY = "summary.json, and run --format csv"

Printed = Callable[..., str]


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Printed:
    """Stand beside a small trace; return a function that gives what a command prints as CSV."""
    monkeypatch.chdir(tmp_path)
    trace = make_trace(1, block_tokens=16, prompt=300, stored=12, drafters=("ngram",))
    save_trace(trace, tmp_path / "small.npz")

    def run(*line: str) -> str:
        assert main([*line, "--format", "csv"]) == 0
        return capsys.readouterr().out

    return run


def metrics(text: str) -> set[str]:
    """Return the paths of a summary as CSV."""
    return {numbered(row["metric"]) for row in csv.DictReader(io.StringIO(text))}


def test_no_name_stands_twice() -> None:
    """The page is read as it is meant."""
    assert len(sections()) > 15
    for section in sections():
        names = documented(section)
        assert names
        assert len(set(names)) == len(names)


def test_a_run(printed: Printed, tmp_path: Path) -> None:
    """The tables in order; the summary of dense, offloading and inline prediction together."""
    found = metrics(printed("run", *LOOP, "--out", "one"))
    found |= metrics(printed("run", *LOOP[:-2], "--scheme", "dense"))
    found |= metrics(printed("run", *LOOP, "--profile", "h200", "--engine", "gpu_exec"))
    assert set(documented(SUMMARY)) == {"metric", "value"} | found
    for name in ("steps.csv", "requests.csv"):
        assert documented(name) == header((tmp_path / "one" / name).read_text())


def test_a_run_on_several_nodes(printed: Printed, tmp_path: Path) -> None:
    """The same, and what such runs have besides."""
    found = metrics(printed("run", *RATE, "--disaggregated", "2:2", "--out", "two"))
    more = documented("summary.json of several nodes")
    assert found <= {*documented(SUMMARY), *more}
    assert set(more) == found - set(documented(SUMMARY))
    own = {name: documented(name) for name in ("steps.csv", "requests.csv")}
    written = {name: header((tmp_path / "two" / name).read_text()) for name in (*own, "nodes.csv")}
    assert written["steps.csv"] == documented("steps.csv of several nodes") + own["steps.csv"]
    assert written["requests.csv"] == own["requests.csv"] + documented(
        "requests.csv of several nodes"
    )
    assert written["nodes.csv"] == documented("nodes.csv")


def test_a_sweep(printed: Printed) -> None:
    """What was varied, the row's own columns, then the summary without its notes."""
    vary = ["--vary", "fetch_ratio=0.1,0.5", "--vary", "concurrency=1,2"]
    names = header(printed("sweep", *vary, *SMALL, "--budget", "64", "--workers", "1"))
    assert names[:2] == ["fetch_ratio", "concurrency"]
    assert names[2:5] == documented("results.csv, and sweep --format csv")
    run = metrics(printed("run", *LOOP))
    assert {numbered(name) for name in names[5:]} == {
        name for name in run if name.split(".")[0] not in LEFT_OUT
    }


def test_a_comparison(printed: Printed) -> None:
    """By section and unit, a column for each scheme."""
    names = header(printed("compare", "dense", "oasis", *LOOP))
    assert names == [*documented("compare --format csv"), "dense", "oasis"]


def test_plans(printed: Printed) -> None:
    """A fleet of replicas, and nodes of both kinds; targets come last."""
    load = [*RATE, "--scheme", "oasis", "--slo", "tpot_p99=100ms,ttft_p95=5s", "--tp", "1"]
    fixed, nodes = documented("plan --format csv"), ["prefill_nodes", "decode_nodes"]
    nodes.append("fails_with_nodes")
    assert fixed[-3:] == nodes
    targets = ["tpot_p99_ms", "ttft_p95_ms"]
    line = ["plan", *load, "--workers", "1"]
    assert header(printed(*line)) == [*fixed[:-3], *targets]
    found = header(printed(*line, "--disaggregated", "1:1"))
    assert set(found) == {*fixed, *targets}


def test_a_report(printed: Printed) -> None:
    """A line for each cell."""
    printed("run", *LOOP, "--out", "one")
    assert header(printed("report", "one")) == documented(
        "report --format csv, and links in a report"
    )


@pytest.mark.parametrize("name", ["roofline", "breakdown"])
def test_roofs_and_breakdown(printed: Printed, name: str) -> None:
    """Inputs stand in every line."""
    size = ["--context", "200"]
    more = size if name == "roofline" else [*size, "--batch", "2", "--attended", "64"]
    more += [] if name == "roofline" else ["--trace", "small.npz"]
    assert header(printed(name, *more)) == documented(f"{name} --format csv")


def test_traces(printed: Printed) -> None:
    """Listed, in full, checked, measured and sampled."""
    listed = documented("trace info --format csv")
    assert header(printed("trace", "info")) == listed[:-2]
    assert header(printed("trace", "info", "small.npz")) == listed[-2:]
    assert header(printed("trace", "check", "small.npz")) == documented("trace check --format csv")
    stats = documented("trace stats --format csv")
    line = ["trace", "stats", "small.npz", "--budget", "64"]
    plain, sample = header(printed(*line)), header(printed(*line, "--sample"))
    assert set(stats) == {*plain, *sample}
    assert set(sample) == set(stats) - {"new_blocks"}


def test_lists_and_entries(printed: Printed) -> None:
    """Profiles, networks, models and schemes."""
    kinds = {"profiles": "h100", "networks": "roce-400", "models": "qwen3-8b", "schemes": "oasis"}
    listed = {name for kind in kinds for name in header(printed(kind))}
    assert set(documented("profiles, networks, models, schemes --format csv")) == listed
    for kind, name in kinds.items():
        assert header(printed(kind, "show", name)) == documented("trace info --format csv")[-2:]
