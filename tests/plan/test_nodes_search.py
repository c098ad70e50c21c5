"""The search behind `plan --disaggregated`, on small loads and on drawn ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oasis_sim.cluster import load_cluster, prefill_alone, simulate_cluster
from oasis_sim.engine.spec import DisaggregationSpec, LoadSpec, ScenarioSpec
from oasis_sim.plan.fleet import Bounds
from oasis_sim.plan.inputs import Inputs
from oasis_sim.plan.nodes import cheapest, lowest
from oasis_sim.plan.probe import room_share
from oasis_sim.plan.prober import Prober
from oasis_sim.plan.slo import Reading, parse_slo
from oasis_sim.scheme import load_scheme, with_options
from tests.plan.command import plan

SMALL = with_options(load_scheme("oasis"), budget_tokens=64)


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

    def __init__(self, rows: list[int], pace: list[int], chosen: int, likely: int) -> None:
        self.rows, self.pace, self.chosen, self.likely = rows, pace, chosen, likely
        self.spec = replace(ScenarioSpec(), concurrency=1)

    def on_nodes(self, prefill: int, decode: int) -> Point:
        """Return whether a pair is enough, and whether the pace of decode is missed."""
        row = min(prefill, self.chosen) - 1
        slow = decode < self.pace[row]
        return Point(decode >= self.rows[row] and not slow, slow, prefill > self.chosen)

    def nodes_for_load(self, prefill: int, decode: int) -> int:
        """Return any guess."""
        return self.likely

    verdict = on_nodes


@given(
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.tuples(st.integers(1, 3), st.integers(4, 6)),
    st.tuples(st.integers(1, 3), st.integers(4, 7)),
    st.integers(6, 14),
    st.integers(1, 8),
    st.booleans(),
    st.integers(1, 6),
    st.integers(0, 9),
)
@example([9, *[1] * 5], [4] * 6, (1, 4), (1, 4), 14, 3, False, 6, 0)
def test_the_search_is_right_wherever_its_rules_hold(
    rows: list[int],
    pace: list[int],
    prefill: tuple[int, int],
    decode: tuple[int, int],
    most: int,
    start: int,
    falls: bool,
    chosen: int,
    likely: int,
) -> None:
    """Though more prefill nodes may hurt: the cheapest pair of the full grid, or none as there."""
    drawn: Any = Drawn(rows, sorted(pace, reverse=falls), chosen, likely)
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

    def nodes_for_load(self, prefill: int, decode: int) -> int:
        """Return no guess."""
        return 0

    verdict = on_nodes


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

    def nodes_for_load(self, prefill: int, decode: int) -> int:
        """Return no guess."""
        return 0

    verdict = on_nodes


def test_the_answer_has_no_neighbour_that_is_enough() -> None:
    """Where chance breaks a rule of the search, one node fewer is looked at all the same."""
    chance: Any = ByChance()
    assert (1, 3) == cheapest(chance, Bounds((1, 3), (1, 4)), 7)


@given(
    *(st.integers(1, 40), st.integers(0, 40), st.integers(1, 60), st.integers(1, 80)),
    st.integers(1, 60),
    st.integers(0, 80),
)
@example(1, 39, 60, 1, 4, 0)
@example(1, 39, 17, 1, 60, 17)
def test_the_lowest_of_a_range(
    low: int, more: int, threshold: int, start: int, useless: int, likely: int
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
    useless_from, guess = (lambda number: number >= useless), (lambda _: likely)
    assert expected == lowest(is_enough, low, high, start, useless_from, guess)
    assert all(low <= number <= high for number in asked)
    assert len(asked) == len(set(asked))
    if expected is None:
        assert sum(useless <= number < high for number in asked) <= 1
    if start == low < likely == threshold <= min(high, useless):
        assert len(asked) <= 3


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
    load = ["--rate", "1000", "--requests", "5", "--context", "3000", "--output-tokens", "10"]
    card = ["--scheme", "dense", "--tp", "1", "--network", "roce-100"]
    assert plan(*load, *card, "--slo", "tpot_p99=9s", "--disaggregated", "8:4..8") == 4
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
    assert waits.sum() / 40 == room_share(result.run.requests, moves) == short.room_share
