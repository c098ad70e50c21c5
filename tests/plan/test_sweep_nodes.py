"""Sweeps over several nodes: what varies, what is resumed, what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.fileio import find_input
from oasis_sim.plan.grid import sort_values

LOAD = ["--trace", "small.npz", "--budget", "64", "--context", "400", "--output-tokens", "12"]
FEW = ["--requests", "3", "--rate", "50", "--workers", "1"]
NETWORKS = ["--vary", "disaggregated=1:1,2:1", "--vary", "network=roce-100,mine.yaml"]


@pytest.fixture
def beside(beside: Path) -> Path:
    """Stand in a directory that holds a small trace and a network of one's own."""
    (beside / "mine.yaml").write_text(find_input("roce-400", "network").read_text())
    return beside


def sweep(*arguments: str) -> int:
    """Sweep the small load in this process."""
    return main(["sweep", *LOAD, *FEW, "--quiet", *arguments])


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table as text."""
    return list(csv.DictReader(table.splitlines()))


def test_a_network_file_counts_by_its_content(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points of a file that has changed are simulated again, the others are not."""
    grid = [*NETWORKS, "--out", "s", "--format", "csv"]
    assert sweep(*grid) == 0
    before = rows(capsys.readouterr().out)
    assert [row["status"] for row in before] == ["done"] * 4
    assert [row["disaggregated"] for row in before] == ["1:1", "1:1", "2:1", "2:1"]
    assert len({row["run"] for row in before}) == 4
    mine = beside / "mine.yaml"
    mine.write_text(mine.read_text().replace("latency: {value: 5 us", "latency: {value: 5 ms"))
    assert sweep(*grid, "--dry-run") == 0
    listed = rows(capsys.readouterr().out)
    assert [row["status"] for row in listed] == ["missing", "done"] * 2
    assert sweep(*grid) == 0
    after = rows(capsys.readouterr().out)
    for old, new in zip(before, after, strict=True):
        slower = float(new["latency.ttft_ms.p50"]) - float(old["latency.ttft_ms.p50"])
        assert slower > 4.9 if new["network"] == "mine.yaml" else new == old


def test_a_point_is_the_run_of_its_config(beside: Path) -> None:
    """`run --config` of a point gives the same summary, and refuses a changed network."""
    assert sweep(*NETWORKS, "--fault", "completion:share=0.5,delay=9ms", "--out", "s") == 0
    found = next(
        row for row in rows((beside / "s/results.csv").read_text()) if row["network"] == "mine.yaml"
    )
    place = beside / "s/runs" / found["run"]
    again = ["run", "--config", str(place / "config.yaml"), "--quiet"]
    assert main([*again, "--out", "again"]) == 0
    assert (beside / "again/summary.json").read_bytes() == (place / "summary.json").read_bytes()
    mine = beside / "mine.yaml"
    mine.write_text(mine.read_text().replace("latency: {value: 5 us", "latency: {value: 6 us"))
    assert main([*again, "--out", "third"]) == 3
    assert main([*again, "--network", "roce-200", "--out", "third"]) == 0


def test_what_cannot_be_is_a_row_with_its_reason(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dense has no part to send; a fault of a node that only some points have."""
    grid = ["--vary", "scheme=oasis,dense", "--vary", "transfer=full,partial"]
    assert sweep("--disaggregated", "1:1", *grid, "--out", "a", "--format", "csv") == 0
    table = {(row["scheme"], row["transfer"]): row for row in rows(capsys.readouterr().out)}
    assert {key for key, row in table.items() if row["status"] == "refused"} == {
        ("dense", "partial")
    }
    assert "there is no part to send" in table["dense", "partial"]["refusal"]
    fault = ["--fault", "prefill:node=1,at=1ms", "--vary", "disaggregated=1:1,2:1"]
    assert sweep(*fault, "--out", "b", "--format", "csv") == 0
    refused, done = rows(capsys.readouterr().out)
    assert "names no prefill node" in refused["refusal"]
    assert done["status"] == "done"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--vary", "network=roce-100,roce-400"], 2, "--network needs --disaggregated"),
        (["--vary", "disaggregated=1:1,1:0"], 2, "'1:0' is not P:D"),
        (["--disaggregated", "1:1", "--vary", "prefix_hits=0,1.5"], 2, "1.5"),
        (["--disaggregated", "1:1", "--vary", "network=roce-40"], 3, "did you mean 'roce-400'"),
        (["--disaggregated", "1:1", "--vary", "fault=lost"], 2, "fault cannot be varied"),
        (["--vary", "disaggregated=1:1,2:1", "--fault", "lost"], 2, "starts with none of"),
    ],
)
def test_mistakes_are_told_before_the_work(
    beside: Path,
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is simulated or written."""
    assert sweep(*arguments, "--out", "s") == code
    assert words in capsys.readouterr().err
    assert not (beside / "s").exists()


@given(st.permutations(["16:4", "2:1", "1:10", "1:2", "a", "3"]))
def test_counts_of_nodes_sort_as_numbers(values: list[str]) -> None:
    """Numbers, counts of nodes by size, then names."""
    assert sort_values(values) == ["3", "1:2", "1:10", "2:1", "16:4", "a"]
