"""`oasis-sim plan --disaggregated`: the fewest prefill and decode nodes that meet the targets."""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from oasis_sim.cli import plan as cli_plan
from oasis_sim.cli import plan_jobs
from oasis_sim.cli.main import main
from oasis_sim.cli.terminal import simulations_told
from oasis_sim.report.page.html import page
from oasis_sim.report.page.of_plan import plan_report
from tests.plan.command import plan, planned

SIZES = ["--context", "3000", "--output-tokens", "10", "--requests", "40"]
LOAD = [*SIZES, "--rate", "60", "--scheme", "dense", "--tp", "1", "--network", "roce-100"]
SLO = ["--slo", "ttft_p95=300ms,tpot_p99=20ms"]
NODES = ["--disaggregated", "1..8:1..8"]


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the summary of a run."""
    assert main(["run", *words, "--quiet", "--force", "--out", "r", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_load_that_can_be_worked_out_by_hand(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests at equal distances, none of which may wait or share a step with another.

    A prompt takes T of a prefill node and a request then S of a decode node. Arriving every G, none
    meets another where T <= P G and S <= D G: P = ceil(T / G), D = ceil(S / G).
    """
    shape = ["--scheme", "dense", "--context", "1000", "--output-tokens", "6"]
    alone = simulated(
        capsys, *shape, "--concurrency", "1", "--requests", "2", "--disaggregated", "1:1"
    )
    latency = {name: each["mean"] for name, each in alone["latency"].items()}
    prefill_ms = alone["disaggregation"]["ttft_parts_ms"]["prefill"]["mean"]
    decode_ms = latency["e2e_ms"] - latency["ttft_ms"]
    gap_ms = prefill_ms / 2.4
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    lines += [f"{number * gap_ms / 1000:.9f},1000,6" for number in range(40)]
    (beside / "even.csv").write_text("\n".join(lines) + "\n")
    load = ["--workload", "even.csv", "--workload-format", "csv", "--scheme", "dense", "--tp", "1"]
    slo = f"ttft_p99={latency['ttft_ms'] * 1.0001}ms,tpot_p99={latency['tpot_ms'] * 1.0001}ms"
    fleet = planned(capsys, *load, "--slo", slo, *NODES)["fleets"][0]
    assert (3, math.ceil(decode_ms / gap_ms)) == (fleet["prefill_nodes"], fleet["decode_nodes"])
    assert fleet["decode_nodes"] >= 3
    assert fleet["gpus"] == fleet["prefill_nodes"] + fleet["decode_nodes"]


def test_the_answer_is_what_run_gives_and_one_node_fewer_fails(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the fleet gives its numbers again; with one node fewer of a kind it fails."""
    load = ["--context", "3000", "--output-tokens", "40", "--requests", "60", "--rate", "60"]
    more = ["--scheme", "oasis", "--budget", "64", "--trace", "small.npz", "--tp", "1"]
    between = ["--network", "roce-100", "--transfer", "full", "--prefix-hits", "0.25"]
    between += ["--remote-memory", "40 GiB", "--transfers-at-once", "2"]
    slo = ["--slo", "ttft_p95=250ms,e2e_p95=700ms"]
    best = planned(capsys, *load, *more, *between, *slo, *NODES)["fleets"][0]
    pair = (best["prefill_nodes"], best["decode_nodes"])
    assert min(pair) >= 2
    words = shlex.split(best["command"])[2:]
    again = simulated(capsys, *words)
    assert again == best["replica"]
    assert best["gpus"] == again["throughput"]["gpus"]
    reached = {"ttft_p95": again["latency"]["ttft_ms"], "e2e_p95": again["latency"]["e2e_ms"]}
    for target in best["targets"]:
        assert pytest.approx(reached[target["name"]]["p95"]) == target["value_ms"]
        assert target["value_ms"] <= target["limit_ms"]
    fewer = [f"{pair[0] - 1}:{pair[1]}", f"{pair[0]}:{pair[1] - 1}"]
    assert fewer == best["fails_with_nodes"]
    for nodes in fewer:
        words[words.index("--disaggregated") + 1] = nodes
        latency = simulated(capsys, *words)["latency"]
        assert latency["ttft_ms"]["p95"] > 250 or latency["e2e_ms"]["p95"] > 700


@pytest.mark.parametrize(("memory", "full"), [("1.3 GiB", True), ("400 GiB", False)])
def test_full_host_memory_of_prefill_nodes_is_named(
    beside: Path, capsys: pytest.CaptureFixture[str], memory: str, full: bool
) -> None:
    """Three prompts of 3,000 tokens (442 MB each) fill a prefill node of 1.3 GiB."""
    found = planned(capsys, *LOAD, *SLO, *NODES, "--remote-memory", memory)
    named = "the host memory of one is full (1.24 GiB of 1.30 GiB)"
    assert full == (named in found["fleets"][0]["binding"])


def gpus(capsys: pytest.CaptureFixture[str], *more: str) -> int:
    """Return the GPUs of a plan; later options stand in place of earlier ones."""
    found = planned(capsys, *more, "--scheme", "dense", "--tp", "1", *NODES, *SIZES)
    return int(found["fleets"][0]["gpus"])


def test_more_load_and_closer_targets_never_need_fewer(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPUs rise with the rate and with each target."""
    by_rate = [gpus(capsys, "--rate", rate, *SLO) for rate in ("20", "80")]
    assert sorted(by_rate) == by_rate
    assert by_rate[0] < by_rate[-1]
    limits = ("600ms", "120ms")
    by_limit = [gpus(capsys, "--rate", "50", "--slo", f"ttft_p95={each}") for each in limits]
    assert sorted(by_limit) == by_limit
    assert by_limit[0] < by_limit[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slo", "ttft_p95=1ms", *NODES], "missed even by a request alone: ttft_p95"),
        (
            ["--slo", "ttft_p95=200ms", "--disaggregated", "1..2:1..8"],
            "missed by prefill alone with 2 prefill nodes: ttft_p95",
        ),
        (
            ["--slo", "tpot_p99=7.5ms", "--disaggregated", "8:1..2"],
            "missed with 8 prefill nodes and 2 decode nodes: tpot_p99",
        ),
        ([*SLO, *NODES, "--most-gpus", "4"], "missed by prefill alone with 3 prefill nodes"),
        ([*SLO, *NODES, "--most-gpus", "1"], "tp 1: takes more than 1 GPU\n"),
        ([*SLO, *NODES, "--transfer", "partial"], "there is no part to send"),
        ([*SLO, *NODES, "--remote-memory", "1 MiB"], "exceeds the 1.00 MiB of host memory"),
    ],
)
def test_what_cannot_be_met_says_what_is_missing(
    beside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Code 4 and the reason: the request itself, the prompts, the pace of decode, the bounds."""
    assert plan(*LOAD, *arguments) == 4
    shown = capsys.readouterr()
    assert words in shown.out
    assert "no fleet meets the targets" in shown.err
    assert ("missed with" in words) == ("all nodes were simulated together" in shown.out)


def test_a_change_that_nothing_bears_says_what_is_missing(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts twice as long are later than the target on any number of prefill nodes."""
    load = ["--context", "3000", "--output-tokens", "2", "--requests", "20", "--rate", "2"]
    asked = [*load, "--scheme", "dense", "--tp", "1", "--slo", "ttft_p50=120ms", *NODES]
    found = planned(capsys, *asked, "--sensitivity")
    longer = next(each for each in found["sensitivity"] if each["change"] == "context")
    assert longer["gpus"] is None
    assert "more than 16 GPUs, if any number; missed by prefill alone with" in longer["sentence"]


def test_sizes_that_go_the_same_way_are_named_once(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no size changes is said once."""
    asked = ["--rate", "2", "--scheme", "quest", *SIZES, *SLO, *NODES]
    assert plan(*asked) == 4
    shown = capsys.readouterr().out
    assert "tp 1, 2, 4 and 8: scheme quest keeps all KV in HBM" in shown
    assert 1 == shown.count("scheme quest")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--disaggregated", "4"], "is not P:D"),
        (["--disaggregated", "0..4:1"], "'0..4:1' is not P:D"),
        (["--disaggregated", "1..:1"], "a number or LOW..HIGH from 1 to 4,096"),
        (["--disaggregated", "1..2..3:1"], "is not P:D"),
        (["--disaggregated", "1..9999:1"], "is not P:D"),
        (["--disaggregated", "4..1:1"], "4..1 holds nothing"),
        (["--disaggregated", "\x1b1:1"], "is not P:D"),
        (["--disaggregated", "1..2:1", "--fault", "prefill:node=1,at=1s"], "fewest allowed, 1:1"),
        (["--disaggregated", "1..2:1", "--fault", "prefill:node=2,at=1s"], "use 0 to 1;"),
        (["--disaggregated", "1..2:1", "--slo", "ttft_p95=1s"], "twice"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """What is asked wrongly is said in one line, with code 2."""
    assert plan(*LOAD, *SLO, *arguments) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert 1 == len(shown.splitlines())
    assert shown.rstrip("\n").isprintable()


def test_what_lies_between_nodes_needs_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """A network or a fault alone is a usage error, --workers is not."""
    assert plan(*LOAD, *SLO) == 2
    assert "--network needs --disaggregated" in capsys.readouterr().err


def test_one_kind_of_node_may_be_fixed(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With eight prefill nodes given, decode nodes alone are searched; no neighbour is outside."""
    asked = [*LOAD, "--slo", "tpot_p99=8.5ms", "--disaggregated", "8:1..8"]
    fleet = planned(capsys, *asked)["fleets"][0]
    assert 8 == fleet["prefill_nodes"]
    assert [f"8:{fleet['decode_nodes'] - 1}"] == fleet["fails_with_nodes"]
    fixed = planned(capsys, *LOAD, "--slo", "tpot_p99=1s", "--disaggregated", "8:8")
    assert ([], 16) == (fixed["fleets"][0]["fails_with_nodes"], fixed["fleets"][0]["gpus"])


def test_a_fault_costs_nodes(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for a prefill node that dies needs one more; with one alone there is none left."""
    asked = [*LOAD, "--slo", "ttft_mean=400ms", "--disaggregated", "1..8:3"]
    fault = ["--fault", "prefill:node=0,at=50ms", "--fault", "timeout:after=50ms"]
    whole, harmed = (planned(capsys, *asked, *more)["fleets"][0] for more in ([], fault))
    assert harmed["prefill_nodes"] == whole["prefill_nodes"] + 1
    again = simulated(capsys, *shlex.split(harmed["command"])[2:])
    assert again == harmed["replica"]
    assert again["disaggregation"]["faults"]["recomputed_tokens"] > 0
    few = [*LOAD, "--slo", "ttft_mean=4s", *fault]
    few[few.index("--rate") + 1] = "10"
    found = planned(capsys, *few, "--disaggregated", "1..3:3")
    assert 2 == found["fleets"][0]["prefill_nodes"]
    assert any("fewer misses" in each and "none is left" in each for each in found["sentences"])
    assert plan(*few, "--disaggregated", "1:3") == 4
    shown = capsys.readouterr().out
    assert "missed with 1 prefill node and 3 decode nodes: 40 requests wait for a prefill" in shown
    assert "(1 simulation)" in shown


def test_short_loads_are_simulated_longer(
    beside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that stay longer than they arrive are drawn again, more of them."""
    monkeypatch.setattr(plan_jobs, "FIRST_REQUESTS", 20)
    load = ["--context", "1000", "--output-tokens", "40", "--rate", "60", "--scheme", "dense"]
    asked = [*load, "--tp", "1", "--slo", "tpot_p99=20ms", *NODES]
    found = planned(capsys, *asked)
    summary = found["fleets"][0]["replica"]
    assert summary["scenario"]["requests"] > 20
    arriving = summary["scenario"]["workload"]["span_s"]
    assert arriving >= 5 * summary["latency"]["e2e_ms"]["mean"] / 1000
    assert not any("still builds up" in each for each in found["notes"])


def test_every_form_says_the_same(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, CSV, JSON and page name the nodes, what one fewer misses, and the simulations."""
    (beside / "p.yaml").write_text("currency: EUR\ngpu_hour: {h100: 3.6}\n")
    asked = [*LOAD, *SLO, "--disaggregated", "1..6:1..6", "--price-file", "p.yaml"]
    found = planned(capsys, *asked)
    fleet = found["fleets"][0]
    assert {"network", "workload"} <= set(found["fingerprints"]["h100"])
    pair = f"{fleet['prefill_nodes']}:{fleet['decode_nodes']}"
    assert (
        pytest.approx(fleet["gpus"] * 3.6 / 3600 / (60 * 10) * 1e6)
        == (fleet["cost_per_million_output_tokens"])
    )
    assert plan(*asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{pair} x 1" in shown
    assert f"{pair} meets ({fleet['simulations']} simulations) (P:D)" in shown
    assert "one prefill node fewer misses: " in shown
    assert "the queue for prefill takes" in shown
    assert "all nodes were simulated together" in shown
    assert "needs per decode GPU at peak" in shown
    network = fleet["replica"]["links"]["network"]
    assert f"decode nodes could receive {network['limit_gb_per_s']:.2f}" in shown
    assert "replica" not in shown
    assert plan(*asked, "--format", "csv") == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert fleet["fails_with_nodes"] == row["fails_with_nodes"].split()
    text = page(plan_report(found))
    for words in ("prefill nodes", "prefill:decode nodes that fail", "one node fewer misses"):
        assert words in text
    assert "All nodes of the recommended fleet" in text


def test_what_it_hangs_on_and_the_report(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half as high a rate again needs what a plan for that rate finds; the page is of the JSON."""
    asked = [*LOAD, *SLO, *NODES]
    found = planned(capsys, *asked, "--report", "a.html")
    findings = {each["change"]: each for each in found["sensitivity"]}
    assert {"rate", "context"} == set(findings)
    asked[asked.index("--rate") + 1] = "90"
    best = planned(capsys, *asked)["fleets"][0]
    assert best["gpus"] == findings["rate"]["gpus"]
    assert f"{best['prefill_nodes']}:{best['decode_nodes']}" == findings["rate"]["nodes"]
    assert (beside / "a.html").read_text(encoding="utf-8") == page(plan_report(found))


class Terminal(io.StringIO):
    """Stand in for a terminal."""

    def isatty(self) -> bool:
        """Tell that somebody watches."""
        return True


def test_a_search_counts_its_simulations_where_somebody_watches(
    beside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last number on a terminal: all of the plan and one of a request alone; else nothing."""
    monkeypatch.setenv("TERM", "xterm")
    told: list[int] = []
    asked = ["plan", *LOAD, *SLO, *NODES, "--format", "json"]
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with simulations_told("searching") as tell:
        assert tell is not None
        tell(7)
    assert "searching: 7 simulations" in terminal.getvalue()
    with simulations_told("searching", quiet=True) as tell:
        assert tell is None
    monkeypatch.setattr(cli_plan, "simulations_told", lambda *_: nullcontext(told.append))
    assert main(asked) == 0
    fleet = json.loads(capsys.readouterr().out)["fleets"][0]
    assert list(range(1, fleet["simulations"] + 2)) == told
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with simulations_told("searching") as tell:
        assert tell is None
