"""`oasis-sim run --disaggregated`: keys, files, repeatability, refusals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli.disaggregation import node_counts
from oasis_sim.cli.main import main
from oasis_sim.errors import UsageError
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

SMALL = ["--budget", "32", "--context", "200", "--output-tokens", "20", "--rate", "50"]
SMALL += ["--requests", "6", "--trace", "small.npz", "--block-size", "4", "--quiet"]
NODES = ["--disaggregated", "2:2"]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(3, steps=10, layers=3, heads=2, stored=60), tmp_path / "small.npz")
    return tmp_path


def summary_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run and return the JSON document."""
    assert main(["run", *SMALL, *words, "--format", "json"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def test_summary_has_the_keys_of_the_contract(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Network, remote tier and first token are filled; all requests are done."""
    found = summary_of(capsys, *NODES, "--network", "roce-100", "--out", "one")
    network, remote = found["links"]["network"], found["tiers"]["remote"]
    assert network["bytes_total"] == network["hand_over_bytes"] + network["fetched_bytes"] > 0
    assert 0 < network["utilisation"] < 1
    assert network["gb_per_s_peak"] >= network["gb_per_s_mean"] > 0
    assert 0 < remote["peak_bytes"] <= remote["capacity_bytes"]
    assert found["latency"]["ttft_ms"]["samples"] == 6
    assert found["requests"]["completed"] == 6
    nodes = found["disaggregation"]
    assert (nodes["prefill_nodes"], nodes["decode_nodes"], nodes["network"]) == (2, 2, "roce-100")
    assert nodes["transfer"] == "partial"


def test_run_directory_and_its_config_give_the_same_bytes(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run again from config.yaml, faults included: the manifests are equal."""
    fault = ["--fault", "link:node=decode1,at=10ms,for=20ms,share=0.1"]
    summary_of(capsys, *NODES, *fault, "--prefix-hits", "0.5", "--out", "one")
    files = {path.name for path in (beside / "one").iterdir()}
    assert files >= {"config.yaml", "summary.json", "steps.csv", "requests.csv", "nodes.csv"}
    assert files >= {"timeline.json", "manifest.json", "run.log"}
    assert main(["run", "--config", "one/config.yaml", "--out", "two", "--quiet"]) == 0
    one, two = ((beside / name / "manifest.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_table_names_the_nodes(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Heading and a section of their own, also with faults."""
    words = ["--fault", "prefill:node=0,at=5ms", "--fault", "timeout:after=1ms"]
    assert main(["run", *SMALL, *NODES, *words, "--out", "one"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 prefill nodes and 2 decode nodes on roce-400, partial transfer" in shown
    for words_of_row in (
        "Between nodes",
        "Handed over",
        "TTFT, of which",
        "Decode hosts",
        "Faults",
    ):
        assert words_of_row in shown


def test_table_says_when_nothing_was_handed_over(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one output token there is nothing to send, and the row says why."""
    words = [
        "1" if before == "--output-tokens" else word for before, word in pairwise(["", *SMALL])
    ]
    assert main(["run", *words, *NODES, "--out", "one"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "nothing: prefill gave every request all its tokens" in shown


def test_dense_is_sent_whole(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheme that selects nothing defaults to full transfer and keeps nothing in host memory."""
    words = [word for word in SMALL if word not in ("--budget", "32", "--block-size", "4")]
    assert main(["run", *words, *NODES, "--scheme", "dense", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disaggregation"]["transfer"] == "full"
    assert found["tiers"]["host"]["peak_bytes_all_nodes"] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--disaggregated", "0:1"], 2, "is not P:D"),
        (["--disaggregated", "1"], 2, "is not P:D"),
        (["--disaggregated", "1:9999999"], 2, "is not P:D"),
        (["--network", "roce-100"], 2, "--network needs --disaggregated"),
        (["--fault", "timeout:after=1s"], 2, "--fault needs --disaggregated"),
        (["--workers", "2"], 2, "--workers needs --disaggregated"),
        (["--remote-memory", "1 GiB"], 2, "--remote-memory needs --disaggregated"),
        ([*NODES, "--network", "roce-1"], 3, "roce-1"),
        ([*NODES, "--fault", "fire"], 2, "starts with none of"),
        ([*NODES, "--steps", "3"], 2, "--steps"),
        ([*NODES, "--remote-memory", "1 MiB"], 1, "--remote-memory"),
        ([*NODES, "--prefix-hits", "1.5"], 2, "prefix-hits"),
    ],
)
def test_what_makes_no_sense_is_refused(
    beside: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    """One message, the documented exit code, nothing written."""
    assert main(["run", *SMALL, *words, "--out", "one"]) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert not (beside / "one").exists()


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("profile", "profile"),
        ("model", "model"),
        ("scheme", "scheme"),
        ("network", "disaggregation.network"),
        ("trace", "trace.1"),
    ],
)
def test_unknown_names_in_a_config_are_refused_with_file_line_and_key(
    beside: Path, capsys: pytest.CaptureFixture[str], key: str, field: str
) -> None:
    """The name alone would not say where to look; an option that replaces it is named alone."""
    names = {"profile": "h100", "model": "qwen3-8b", "scheme": "oasis", "network": "roce-100"}
    names |= {key: "nope"}
    lines = [f"{name}: {names[name]}" for name in ("profile", "model", "scheme")]
    lines += ["trace:", "- small.npz", f"- {names.get('trace', 'small.npz')}"]
    lines += ["disaggregation:", "  prefill: 1", "  decode: 1", f"  network: {names['network']}"]
    text = "\n".join(["format: oasis-config", "version: 1", *lines, "  transfer: partial", ""])
    (beside / "own.yaml").write_text(text)
    line = 1 + next(number for number, words in enumerate(text.split("\n")) if "nope" in words)
    assert main(["run", "--config", "own.yaml", "--out", "one", "--quiet"]) == 3
    shown = capsys.readouterr()
    assert f"own.yaml:{line}: {field}: nope: no " in shown.err
    assert shown.out == ""
    if key == "model":
        assert main(["run", "--config", "own.yaml", "--model", "gone", "--out", "one"]) == 3
        assert "own.yaml" not in capsys.readouterr().err


def test_node_counts() -> None:
    """P:D, digits only."""
    assert node_counts("16:64") == (16, 64)
    for text in ("", ":", "1:", ":1", "1:2:3", "-1:2", "1 : 2", "٣:1", "1e1:2"):
        with pytest.raises(UsageError):
            node_counts(text)
