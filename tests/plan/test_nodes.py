"""`oasis-sim plan --disaggregated`: the fewest prefill and decode nodes that meet the targets."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import shlex
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oasis_sim.cli import plan as cli_plan
from oasis_sim.cli import plan_jobs
from oasis_sim.cli.main import main
from oasis_sim.cli.terminal import simulations_told
from oasis_sim.cluster import load_cluster, prefill_alone, simulate_cluster
from oasis_sim.engine.spec import DisaggregationSpec, LoadSpec, ScenarioSpec
from oasis_sim.plan.fleet import Bounds
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.nodes import cheapest, lowest
from oasis_sim.plan.probe import Prober, room_share
from oasis_sim.plan.slo import Reading, parse_slo
from oasis_sim.report.page.html import page
from oasis_sim.report.page.of_plan import plan_report
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

SIZES = ["--context", "3000", "--output-tokens", "10", "--requests", "40"]
LOAD = [*SIZES, "--rate", "60", "--scheme", "dense", "--tp", "1", "--network", "roce-100"]
SLO = ["--slo", "ttft_p95=300ms,tpot_p99=20ms"]
NODES = ["--disaggregated", "1..8:1..8"]
SMALL = with_options(load_scheme("oasis"), budget_tokens=64)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), tmp_path / "small.npz")
    return tmp_path


def plan(*arguments: str) -> int:
    """Plan in this process."""
    return main(["plan", "--workers", "1", "--quiet", *arguments])


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON of a plan that must be found."""
    assert plan(*arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


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


def prober_of(slo: str, scheme: str = "dense", requests: int = 40, **load: Any) -> Prober:
    """Return the prober of a small load on nodes of their own."""
    spec = ScenarioSpec(
        scheme=SMALL if scheme == "oasis" else load_scheme(scheme),
        traces=("small.npz",),
        load=LoadSpec("poisson", requests, **load),
        concurrency=None,
        disaggregation=DisaggregationSpec(1, 1, "roce-100", "full"),
    )
    return Prober(spec, parse_slo(slo), Inputs())


@pytest.mark.parametrize(
    ("slo", "scheme"),
    [
        ("ttft_p95=200ms,tpot_p99=12ms", "dense"),
        ("e2e_p95=550ms", "oasis"),
    ],
)
def test_no_pair_of_the_full_grid_is_cheaper(beside: Path, slo: str, scheme: str) -> None:
    """The search finds the fewest nodes of all 36 pairs, and simulates less than half of them."""
    size = {"rate_per_s": 50.0, "context_tokens": 3000, "output_tokens": 40}
    prober, every = (prober_of(slo, scheme, 24, **size) for _ in range(2))
    pairs = itertools.product(range(1, 7), repeat=2)
    met = [sum(pair) for pair in pairs if every.on_nodes(*pair).met]
    found = cheapest(prober, Bounds((1, 6), (1, 6)), 12)
    assert isinstance(found, tuple) == bool(met)
    if isinstance(found, tuple):
        assert min(met) == sum(found)
    assert prober.simulations < 18


def test_more_prefill_nodes_help_the_pace_where_decode_fetches_from_them() -> None:
    """At 100 Gbit/s one prefill node holds up fetches, however many nodes decode: 2:2, not 1:4."""
    load = LoadSpec("poisson", 60, rate_per_s=12.0, context_tokens=16384, output_tokens=40)
    nodes = DisaggregationSpec(1, 1, "roce-100", "partial", prefix_hits=0.95)
    spec = ScenarioSpec(load=load, concurrency=None, disaggregation=nodes)
    prober = Prober(spec, parse_slo("tpot_p95=25ms"), Inputs())
    slow, better = prober.on_nodes(1, 2), prober.on_nodes(2, 2)
    assert (True, False, True) == (slow.lacks_decode_nodes, prober.on_nodes(1, 3).met, better.met)
    assert (2, 2) == cheapest(prober, Bounds((1, 4), (1, 8)), 12)


def test_prefill_nodes_that_are_never_chosen_change_nothing_and_end_the_search() -> None:
    """One prompt at a time leaves all but the first node without work: two rows, not thousands."""
    load = LoadSpec("poisson", 8, rate_per_s=0.1, context_tokens=1000, output_tokens=4)
    nodes = DisaggregationSpec(1, 1, "roce-100", "full")
    spec = ScenarioSpec(
        scheme=load_scheme("dense"), load=load, concurrency=None, disaggregation=nodes
    )
    prober = Prober(spec, parse_slo("e2e_p99=1ms"), Inputs())
    one, two, nine = (prober.on_nodes(prefill, 1) for prefill in (1, 2, 9))
    assert (False, True, True) == (one.spare_prefill, two.spare_prefill, nine.spare_prefill)
    assert one.readings == two.readings == nine.readings
    before = prober.simulations
    found = cheapest(prober, Bounds((1, 4096), (1, 1)), 5000)
    assert "missed with 2 prefill nodes and 1 decode node: e2e_p99" in str(found)
    assert "more prefill nodes would have nothing to do" in str(found)
    assert prober.simulations <= before + 1


@dataclass(frozen=True)
class Point:
    """Stand in for a probe."""

    met: bool
    lacks_decode_nodes: bool
    spare_prefill: bool = False
    readings: tuple[Reading, ...] = ()
    failure: str = ""
    refused: int = 0
    prefill_share: float = 0.0
    keeps_up: bool = True


class Drawn:
    """Stand in for a prober: which pairs are enough follows from what is drawn.

    Row P needs `rows[P]` decode nodes for the first token, which may rise and fall with P; the pace
    of decode needs `pace[P]`, which rises or falls. Prefill nodes beyond `chosen` are never chosen.
    """

    most_useful = 4096

    def __init__(self, rows: list[int], pace: list[int], chosen: int) -> None:
        self.rows, self.pace, self.chosen = rows, pace, chosen
        self.spec = replace(ScenarioSpec(), concurrency=1)

    def on_nodes(self, prefill: int, decode: int) -> Point:
        """Return whether a pair is enough, and whether the pace of decode is missed."""
        row = min(prefill, self.chosen) - 1
        slow = decode < self.pace[row]
        return Point(decode >= self.rows[row] and not slow, slow, prefill > self.chosen)


@given(
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.tuples(st.integers(1, 3), st.integers(4, 6)),
    st.tuples(st.integers(1, 3), st.integers(4, 7)),
    st.integers(6, 14),
    st.integers(1, 8),
    st.booleans(),
    st.integers(1, 6),
)
@example([9, *[1] * 5], [4] * 6, (1, 4), (1, 4), 14, 3, False, 6)
def test_the_search_is_right_wherever_its_rules_hold(
    rows: list[int],
    pace: list[int],
    prefill: tuple[int, int],
    decode: tuple[int, int],
    most: int,
    start: int,
    falls: bool,
    chosen: int,
) -> None:
    """Though more prefill nodes may hurt: the cheapest pair of the full grid, or none as there."""
    drawn: Any = Drawn(rows, sorted(pace, reverse=falls), chosen)
    grid = itertools.product(*(range(low, high + 1) for low, high in (prefill, decode)))
    met = [pair for pair in grid if sum(pair) <= most and drawn.on_nodes(*pair).met]
    bounds = Bounds(prefill, decode)
    found = cheapest(drawn, bounds, most, (1, start))
    if met:
        assert min(met, key=lambda pair: (sum(pair), pair)) == found
    else:
        assert "missed with" in found


class Close:
    """Stand in for a prober of large nodes, where decode misses its pace by a little.

    Below 298 prefill nodes 200 decode nodes are needed, and from there on only `needed`.
    """

    spec = replace(ScenarioSpec(), concurrency=1)
    most_useful = 4096

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.asked: set[tuple[int, int]] = set()

    def on_nodes(self, prefill: int, decode: int) -> Point:
        """Return a point that is enough, or lacks decode nodes."""
        self.asked.add((prefill, decode))
        slow = decode < (200 if prefill < 298 else self.needed)
        return Point(not slow, slow)


@pytest.mark.parametrize(("needed", "checks"), [(200, 1), (198, 2), (190, 5), (151, 7)])
def test_a_miss_by_a_little_asks_each_row_once(needed: int, checks: int) -> None:
    """A row is one question; of the most prefill nodes is asked after 1, 2, 4, ... rows more."""
    close: Any = Close(needed)
    assert (100, 200) == cheapest(close, Bounds((100, 4096), (1, 4096)), 5000)
    rows = {pair for pair in close.asked if 100 < pair[0] < 298}
    most = {pair for pair in close.asked if pair[0] == 298}
    assert len(rows) == len({prefill for prefill, _ in rows}) <= 2 * (200 - needed)
    assert checks == len(most)


class ByChance:
    """Stand in for a prober where three decode nodes are enough, though four are not, by chance."""

    spec = replace(ScenarioSpec(), concurrency=1)
    most_useful = 4096

    def on_nodes(self, prefill: int, decode: int) -> Point:
        """Return a point that is enough with three decode nodes, of two prefill nodes with four."""
        return Point(decode == 3 or (prefill == 2 and decode > 3), lacks_decode_nodes=False)


def test_the_answer_has_no_neighbour_that_is_enough() -> None:
    """Where chance breaks a rule of the search, one node fewer is looked at all the same."""
    chance: Any = ByChance()
    assert (1, 3) == cheapest(chance, Bounds((1, 3), (1, 4)), 7)


@given(
    *(st.integers(1, 40), st.integers(0, 40), st.integers(1, 60), st.integers(1, 80)),
    st.integers(1, 60),
)
@example(1, 39, 60, 1, 4)
def test_the_lowest_of_a_range(
    low: int, more: int, threshold: int, start: int, useless: int
) -> None:
    """Only numbers of the range are asked; the answer is the threshold, the low end, or none.

    After one from `useless` on that fails the highest is asked, so there is one question at most.
    """
    asked: list[int] = []

    def is_enough(number: int) -> bool:
        asked.append(number)
        return number >= threshold

    high = low + more
    expected = None if threshold > high else max(low, threshold)
    assert expected == lowest(is_enough, low, high, start, lambda number: number >= useless)
    assert all(low <= number <= high for number in asked)
    assert len(asked) == len(set(asked))
    if expected is None:
        assert sum(useless <= number < high for number in asked) <= 1


def test_prefill_alone_is_never_later_than_with_decode(beside: Path) -> None:
    """So what it misses no number of decode nodes meets; request by request."""
    prober = prober_of("ttft_p95=1s", rate_per_s=60.0, context_tokens=3000, output_tokens=40)
    inputs, spec = Inputs(), prober.spec
    scenario = inputs.scenario(spec)
    assert spec.disaggregation is not None
    for pair in ((1, 1), (3, 2)):
        nodes = replace(spec.disaggregation, prefill=pair[0], decode=pair[1])
        cluster = load_cluster(nodes, scenario, inputs.network(spec))
        alone = prefill_alone(scenario, cluster)
        sooner = alone.first_token_ps
        whole = simulate_cluster(scenario, cluster)
        assert (alone.admitted_ps <= whole.run.requests.admitted_ps).all()
        assert (sooner <= whole.hand_overs.prefill_end_ps).all()
        assert (sooner < whole.run.requests.first_token_ps).all()


def test_requests_that_wait_for_prefill_are_seen_without_decode(beside: Path) -> None:
    """Prefill is fast enough on four nodes, yet its queue is too long when the last one arrives."""
    prober = prober_of("ttft_p95=9s", rate_per_s=70.0, context_tokens=3000, output_tokens=10)
    alone = {nodes: prober.prefill_alone(nodes) for nodes in range(1, 9)}
    queues = {nodes for nodes, each in alone.items() if not each.met and each.prefill_share <= 1}
    assert queues
    assert all(alone[nodes].waiting_share > 0.05 for nodes in queues)
    assert not any(prober.on_nodes(nodes, 40).met for nodes in queues)
    found = cheapest(prober, Bounds((1, 8), (1, 8)), 16)
    assert isinstance(found, tuple)
    assert found[0] == max(queues) + 1


def test_no_more_nodes_than_requests_are_asked(beside: Path) -> None:
    """Each request takes one node of a kind, so of thousands allowed eight decode nodes are asked.

    A ninth changes no number. With faults requests move, and no such bound is known.
    """
    load: Any = {"rate_per_s": 60.0, "context_tokens": 3000, "output_tokens": 10}
    prober = prober_of("e2e_p99=1ms", requests=8, **load)
    found = cheapest(prober, Bounds((8, 8), (1, 4096)), 5000)
    assert "missed with 8 prefill nodes and 8 decode nodes" in str(found)
    assert prober.on_nodes(3, 8).readings == prober.on_nodes(3, 9).readings
    assert prober.on_nodes(3, 1).readings != prober.on_nodes(3, 8).readings
    assert prober.spec.disaggregation is not None
    harmed = replace(prober.spec.disaggregation, faults=("prefill:node=0,at=1s",))
    spec = replace(prober.spec, disaggregation=harmed)
    assert Prober(spec, prober.targets, Inputs()).most_useful > 4096


def test_prefill_that_takes_more_than_all_time_is_no_plan(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its share is rate x time / nodes; so few requests that none waits do not hide it."""
    prober = prober_of("ttft_p95=9s", rate_per_s=60.0, context_tokens=3000, output_tokens=40)
    for nodes in (2, 5):
        probe = prober.on_nodes(nodes, 4)
        parts = probe.summary["disaggregation"]["ttft_parts_ms"]
        share = 60 * parts["prefill"]["mean"] / 1000 / nodes
        assert pytest.approx(share) == probe.prefill_share
        assert pytest.approx(share) == prober.prefill_alone(nodes).prefill_share
        assert (share > 1) == (not probe.keeps_up)
    asked = [*LOAD, "--slo", "tpot_p99=9s", "--disaggregated", "8:4..8"]
    asked[asked.index("--rate") + 1], asked[asked.index("--requests") + 1] = "1000", "5"
    assert plan(*asked) == 4
    assert "prefill alone takes" in capsys.readouterr().out


def test_requests_without_room_on_decode_nodes_count_as_waiting(beside: Path) -> None:
    """HBM for two requests at once: prefill is done with most of them, and they wait."""
    prober = prober_of("tpot_p99=1s", rate_per_s=60.0, context_tokens=3000, output_tokens=40)
    spec = replace(prober.spec, hbm_bytes=int(24.4 * 2**30))
    short = Prober(spec, prober.targets, Inputs()).on_nodes(8, 1)
    roomy = prober.on_nodes(8, 1)
    assert short.room_share > 0.2
    assert short.waiting_share >= short.room_share
    assert (True, False) == (short.lacks_decode_nodes, short.met)
    assert (0.0, False) == (roomy.room_share, roomy.lacks_decode_nodes)
    scenario = Inputs().scenario(spec)
    assert spec.disaggregation is not None
    nodes = replace(spec.disaggregation, prefill=8, decode=1)
    result = simulate_cluster(scenario, load_cluster(nodes, scenario))
    last = int(result.run.requests.arrival_ps.max())
    early = result.run.requests.arrival_ps < last
    moves = result.hand_overs
    waits = early & (moves.prefill_end_ps <= last) & (moves.sent_ps > last)
    assert waits.sum() / 40 == room_share(result) == short.room_share


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
