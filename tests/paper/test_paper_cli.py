"""`paper`, `roofline` and `breakdown` on the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.main import main
from oasis_sim.paper import fig11, fig12, fig13, fig14, nodes
from oasis_sim.trace import save_trace
from tests.engine.scenarios import random_trace


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(random_trace(blocks=256), tmp_path / "small.npz")
    return tmp_path


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run a command and return the JSON document that it prints."""
    assert main([*arguments, "--format", "json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def test_fig2_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Name, sixteen rows with the agreed keys, mean error zero."""
    found = json_of(capsys, "paper", "fig2")
    assert list(found) == ["name", "rows", "mape_pct"]
    assert (found["name"], len(found["rows"]), found["mape_pct"]) == ("fig2", 16, 0.0)
    row = found["rows"][0]
    assert {"attended_tokens", "batch", "metric", "unit", "published", "simulated"} <= set(row)
    assert (row["metric"], row["published"], row["simulated"]) == ("retrieval_share_pct", 14, 14)


def test_table2_as_json(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six ratios with three metrics each (1.0 is the row without a cap), the same each time."""
    found = json_of(capsys, "paper", "table2", "--trace", "small.npz")
    assert found == json_of(capsys, "paper", "table2", "--trace", "small.npz")
    assert found["name"] == "table2"
    assert [0.01, 0.02, 0.05, 0.1, 0.2, 1.0] == [
        row["fetch_ratio"] for row in found["rows"] if row["metric"] == "step_ms"
    ]
    errors = [abs(row["error_pct"]) for row in found["rows"]]
    assert found["mape_pct"] == pytest.approx(sum(errors) / len(errors))


def test_all_as_json(
    beside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of comparisons, figure 11 at the context that was asked for."""
    monkeypatch.setattr(fig11, "CONCURRENCIES", (8,))
    monkeypatch.setattr(fig13, "BUDGETS", (128,))
    monkeypatch.setattr(fig12, "RATES", (0.7,))
    monkeypatch.setattr(fig14, "RATIOS", (1.0,))
    monkeypatch.setattr(nodes, "REQUESTS", 4)
    monkeypatch.setattr(nodes, "OUTPUT_TOKENS", 32)
    found = json_of(capsys, "paper", "all", "--trace", "small.npz", "--context", "4096")
    names = ["fig1", "fig2", "fig4", "fig6", "table2"]
    names += ["fig11", "fig12", "fig13", "fig14", "fig15"]
    assert [item["name"] for item in found] == names
    assert all(item["rows"] for item in found)
    rows = found[5]["rows"]
    assert {row["context_tokens"] for row in rows} == {4096}
    assert {row["published"] for row in rows} == {None}
    assert {row["metric"] for row in rows} == {"output_tokens_per_s", "running_batch", "tpot_ms"}
    assert {row["system"] for row in rows} >= {"oasis", "dense"}
    assert found[5]["mape_pct"] is None


def test_table_shows_errors_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a title, a heading and its formula below."""
    assert main(["paper", "fig2"]) == 0
    shown = capsys.readouterr()
    assert "mean absolute error 0.0 %" in shown.out
    assert "share = r / (w + k + r)" in shown.out
    assert shown.err == ""


def test_csv_has_a_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    """One header and sixteen lines; notes are on standard error."""
    assert main(["paper", "fig2", "--format", "csv"]) == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert len(rows) == 16
    assert rows[0]["published"] == "14.0"
    assert shown.err.startswith("fig2: formula")


def test_roofline_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Four roofs per scheme, one of which binds."""
    found = json_of(capsys, "roofline", "--model", "qwen3-32b", "--tp", "2")
    assert (found["name"], found["model"], found["tp"]) == ("roofline", "Qwen3-32B", 2)
    for scheme in ("dense", "oasis"):
        rows = [row for row in found["rows"] if row["scheme"] == scheme]
        assert [row["roof"] for row in rows] == ["hbm", "pcie", "network", "batch"]
        assert sum(row["binds"] for row in rows) == 1


@pytest.mark.parametrize("output_format", ["table", "csv"])
def test_roofline_as_text(capsys: pytest.CaptureFixture[str], output_format: str) -> None:
    """The intensity is there in every format."""
    assert main(["roofline", "--format", output_format]) == 0
    shown = capsys.readouterr()
    assert "0.41" in shown.out
    assert "cap" in shown.err


def test_breakdown_as_json(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Serial and simulated stages for a model, card, batch and attended tokens."""
    found = json_of(
        capsys, "breakdown", "--trace", "small.npz", "--batch", "4", "--attended", "1024"
    )
    assert (found["batch"], found["attended_tokens"], found["scheme"]) == (4, 1024, "oasis")
    rows = {row["stage"]: row for row in found["rows"]}
    assert rows["retrieval"]["serial_ms"] == pytest.approx(1e3 * 0.1 * 4 * 1024 * 147_456 / 64e9)
    critical = [row["simulated_ms"] for row in rows.values() if row["critical_path"]]
    assert sum(critical) == pytest.approx(2 * rows["tpot"]["simulated_ms"])


def test_breakdown_says_when_the_trace_is_too_short(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget above the trace's context is refused: nothing would ever be missing."""
    command = ["breakdown", "--trace", "small.npz", "--batch", "1", "--attended", "8192"]
    assert main(command) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert "which all fit into the 8,208 tokens" in output.err


def test_breakdown_of_quest_attends_the_budget(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheme that selects among KV in HBM follows the trace and `--attended`, too."""
    times = []
    for attended in ("512", "1024"):
        command = ["breakdown", "--scheme", "quest", "--trace", "small.npz", "--batch", "4"]
        found = json_of(capsys, *command, "--attended", attended)
        rows = {row["stage"]: row["simulated_ms"] for row in found["rows"]}
        assert rows["transfer"] == 0
        times.append(rows["attention"])
    assert times[0] < times[1]


def test_breakdown_of_dense_needs_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheme that moves nothing does not open the default trace."""
    monkeypatch.chdir(tmp_path)
    assert main(["breakdown", "--scheme", "dense", "--batch", "4", "--trace", "none.npz"]) == 0
    assert "weights" in capsys.readouterr().out


def test_every_engine_of_the_profile_is_accepted(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FreeKV has an engine of its own in profile h100, which prices it otherwise."""
    options = ("--scheme", "freekv", "--batch", "2", "--trace", "small.npz")
    shown = [
        json_of(capsys, "breakdown", *options, "--engine", engine) for engine in ("vllm", "freekv")
    ]
    assert ["vllm", "freekv"] == [document["engine"] for document in shown]
    assert shown[0]["rows"] != shown[1]["rows"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["paper", "fig9"], 2, "fig9"),
        (["paper", "fig2", "--context", "4096"], 2, "--context applies to fig1 and fig11"),
        (["paper", "fig2", "--profile", "h1000"], 3, "h1000"),
        (["paper", "table2", "--trace", "none.npz"], 3, "none.npz"),
        (["paper", "table2", "--engine", "vlm"], 2, "choose one of: freekv, gpu_exec, infinigen"),
        (["paper", "fig2", "--engine", "vlm"], 2, "choose one of: freekv, gpu_exec, infinigen"),
        (["paper", "fig1", "--profile", "l40s", "--engine", "gpu_exec"], 2, "roofline, vllm"),
        (["breakdown", "--profile", "l40s", "--engine", "gpu_exec"], 2, "roofline, vllm"),
        (["roofline", "--model", "qwen3-235b-a22b"], 1, "does not fit"),
        (["roofline", "--context", "0"], 2, "context"),
        (["roofline", "--scheme", "oasys"], 3, "oasys"),
        (["breakdown", "--trace", "small.npz", "--attended", "100"], 2, "multiple of the block"),
        (["breakdown", "--trace", "small.npz", "--batch", "1000"], 1, "decode together"),
        (["breakdown", "--batch", "0"], 2, "batch"),
    ],
)
def test_refusals_are_one_line(
    beside: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """What cannot be done ends with its exit code and one line that says why."""
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
