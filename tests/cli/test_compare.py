"""`oasis-sim compare`, and several schemes in one run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from oasis_sim.cli.main import main
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

SMALL = ["--trace", "small.npz", "--context", "200", "--output-tokens", "20", "--concurrency", "2"]
BUDGET = ["--budget", "64", "--fetch-ratio", "0.5"]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    trace = make_trace(1, block_tokens=16, prompt=300, stored=12, drafters=("ngram",))
    save_trace(trace, tmp_path / "small.npz")
    return tmp_path


def test_schemes_by_name(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON holds cases, metrics and reasons in the order of the names; nothing is written."""
    command = ["compare", "dense", "oasis", "on-demand", *SMALL, *BUDGET, "--format", "json"]
    assert main([*command, "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    assert [case["name"] for case in found["cases"]] == ["dense", "oasis", "on-demand"]
    assert found["cases"][1]["scenario"]["fetch_ratio"] == 0.5
    assert all(len(metric["values"]) == 3 for metric in found["metrics"])
    assert not (beside / "runs").exists()


def test_several_schemes_of_a_run_are_written_and_compared(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each scheme has its directory; comparing the directories gives the same table."""
    schemes = ["--scheme", "dense, oasis", "--out", "out", "--quiet"]
    assert main(["run", *SMALL, *BUDGET, *schemes]) == 0
    table = capsys.readouterr().out
    assert "oasis against dense" in table
    assert {path.name for path in (beside / "out").iterdir()} == {"dense", "oasis"}
    assert main(["compare", "out/dense", "out/oasis", "--quiet"]) == 0
    assert capsys.readouterr().out == table


def test_places_are_settled_before_the_first_run(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When one of the directories is taken, none is written."""
    (beside / "out" / "oasis").mkdir(parents=True)
    (beside / "out" / "oasis" / "mine.txt").write_text("keep")
    assert main(["run", *SMALL, *BUDGET, "--scheme", "dense,oasis", "--out", "out"]) == 2
    assert "oasis: is not empty" in capsys.readouterr().err
    assert [path.name for path in (beside / "out").iterdir()] == ["oasis"]


def test_a_directory_beside_a_scheme(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished run and a scheme that is simulated now; CSV has a column for each."""
    assert main(["run", *SMALL, *BUDGET, "--out", "out/a", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["compare", "out/a", "oasis", *SMALL, *BUDGET, "--format", "csv", "--quiet"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows
    assert all(row["a"] == row["oasis"] for row in rows)


def test_options_that_differ_are_named(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of one scheme differ by an option of it and by one of the hardware."""
    options = ["--evict", "belady", "--pcie", "4"]
    assert main(["run", *SMALL, *BUDGET, "--out", "out/a", "--quiet"]) == 0
    assert main(["run", *SMALL, *BUDGET, *options, "--out", "out/b", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["compare", "out/a", "out/b", "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)["inputs_that_differ"]
    assert found == [
        {"input": "pcie_nominal_gb_per_s", "values": [64.0, 32.0]},
        {"input": "evict", "values": ["least_recently_selected", "belady"]},
    ]


def test_all_shows_what_is_equal(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results within one per cent are left out, unless asked for."""
    command = ["compare", "oasis", "./oasis.yaml", *SMALL, *BUDGET, "--quiet"]
    assert main(["schemes", "show", "oasis", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (beside / "oasis.yaml").write_text("name: oasis\nfetch_ratio: 0.05\n")
    assert shown["fetch_ratio"] == 0.05
    assert main(command) == 0
    few = capsys.readouterr().out
    assert "no result differs by more than 1 %" in few
    assert main([*command, "--all"]) == 0
    assert "output_tokens_per_s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["oasis"], 2, "two or more"),
        (["oasis", "oassis"], 3, "did you mean"),
        (["small.npz", "oasis"], 3, "small.npz"),
        (["empty", "oasis"], 3, "has no summary.json"),
    ],
)
def test_refusals(
    beside: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """What cannot be compared is refused in one line with its exit code."""
    (beside / "empty").mkdir()
    assert main(["compare", *arguments, *SMALL, *BUDGET]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err.splitlines()[-1]
