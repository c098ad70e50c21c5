"""What a plan adds on request: what it hangs on, where offloading pays, and charts."""

from __future__ import annotations

import json
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.plan.changes import (
    with_half_the_host,
    with_long_contexts,
    with_rate,
    with_slow_link,
    worse_trace,
)
from oasis_sim.plan.crossover import (
    CONCURRENCIES,
    BorderJob,
    Crossover,
    loop,
    make_border_finder,
    on_same_gpus,
    throughput,
)
from oasis_sim.plan.outcome import make_simulator
from oasis_sim.report.chart import WIDTH, Bar, draw
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.trace import AttentionTrace, load_trace

LOAD = [
    *["--budget", "64", "--context", "1000", "--output-tokens", "20", "--requests", "60"],
    *["--trace", "small.npz", "--tp", "1"],
    *["--slo", "ttft_p95=150ms,tpot_p99=25ms", "--workers", "1", "--quiet"],
]


SMALL = with_options(load_scheme("oasis"), budget_tokens=64)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON of a plan that must be found, at 150 requests a second if none is asked."""
    rate = [] if "--rate" in arguments else ["--rate", "150"]
    assert main(["plan", *LOAD, *rate, *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
def test_bars_share_one_scale(values: list[float]) -> None:
    """The longest bar fills the width, none is longer, larger values are never shorter."""
    lines = draw("title", [Bar(str(i), value, "") for i, value in enumerate(values)])[1:]
    lengths = [2 * line.count("\u2588") + line.count("\u258c") for line in lines]
    assert max(lengths) == (2 * WIDTH if max(values) > 0 else 0)
    ranked = [length for _, length in sorted(zip(values, lengths, strict=True))]
    assert sorted(lengths) == ranked


def test_a_bar_without_value_says_why() -> None:
    """Where there is no number nothing is drawn, and the text stands there."""
    lines = draw("x", [Bar("a", 1.0, "1"), Bar("b", None, "refused")])
    assert ["x", "  b  refused"] == [lines[0], lines[2]]


def rates(*values: float | None) -> dict[int, float | None]:
    """Return throughputs by concurrency."""
    return dict(zip(CONCURRENCIES, values, strict=False))


@pytest.mark.parametrize(
    ("offload", "dense", "words"),
    [
        (rates(1, 2, 9), rates(2, 3, 4), "beats dense from 4 requests at once on: 9 against 4"),
        (rates(1, 2, 9), rates(2, 3, 4), "below that it loses: 2 against 3 tokens/s at 2"),
        (rates(1, 2, 3), rates(2, 3, 4), "never beats dense up to 4 requests"),
        (rates(1, 5, 3), rates(2, 3, 4), "beats dense at 2 requests at once"),
        (rates(1, 5), rates(None, None), "from 1 requests at once on: 5 against - tokens/s at 2"),
        (rates(None, None), rates(1, 2), "never beats dense"),
    ],
)
def test_where_offloading_pays_in_words(
    offload: dict[int, float | None], dense: dict[int, float | None], words: str
) -> None:
    """The smallest concurrency from which on it wins, and where it loses."""
    assert words in Crossover("oasis", offload, dense, 1000).sentence()


def test_a_slow_link_halves_every_rate_to_host_memory() -> None:
    """Nominal, usable and every transport; the GPU stays as it is."""
    scenario = ScenarioSpec().scenario()
    slow = with_slow_link(scenario).profile
    fast = scenario.profile
    assert fast.pcie.bytes_per_s == 2 * slow.pcie.bytes_per_s
    assert fast.pcie.usable_bytes_per_s == 2 * slow.pcie.usable_bytes_per_s
    for name, transport in fast.engine("vllm").transports.items():
        halved = slow.engine("vllm").transport(name).bytes_per_s.y
        assert transport.bytes_per_s.y == pytest.approx([2 * rate for rate in halved])
    assert fast.gpu == slow.gpu


def test_sensitivity_asks_one_change_at_a_time(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More load needs no fewer GPUs, and the answer is that of a plan for the changed load."""
    found = planned(capsys, "--scheme", "oasis", "--sensitivity")
    gpus = {each["change"]: each["gpus"] for each in found["sensitivity"]}
    assert {"rate", "context", "prediction", "link", "host"} == set(gpus)
    base = found["fleets"][0]["gpus"]
    assert all(number >= base for number in gpus.values())
    changed = planned(capsys, "--scheme", "oasis", "--rate", "225")
    assert changed["fleets"][0]["gpus"] == gpus["rate"]
    sentences = "\n".join(found["sentences"])
    assert "with prediction 5 points worse" in sentences
    assert "of the same fleet" in sentences


def test_the_fleet_bears_so_much_and_not_the_next_step(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through `run`: the last load that is said to meet the targets does, 2 % more does not."""
    found = planned(capsys, "--scheme", "oasis", "--sensitivity")
    reach, best = found["reach"], found["fleets"][0]
    meets, fails = reach["meets_at_times_the_rate"], reach["fails_at_times_the_rate"]
    assert pytest.approx(0.02) == fails - meets

    def is_met(times: float) -> bool:
        words = shlex.split(best["command"])[1:]
        words[words.index("--rate") + 1] = repr(150.0 * times / best["replicas"])
        assert main([*words, "--quiet", "--force", "--out", "r", "--format", "json"]) == 0
        latency = json.loads(capsys.readouterr().out)["latency"]
        values = {"ttft_p95": latency["ttft_ms"]["p95"], "tpot_p99": latency["tpot_ms"]["p99"]}
        return all(values[each["name"]] <= each["limit_ms"] for each in best["targets"])

    assert is_met(meets)
    assert not is_met(fails)


def agreement(trace: AttentionTrace, chosen: int) -> float:
    """Return the mean share of the next step's best blocks that the draft names."""
    draft = next(iter(trace.pred_order.values()))[:-1, ..., :chosen]
    truth = trace.use_order[1:, ..., :chosen]
    hits = (draft[..., :, None] == truth[..., None, :]).any(axis=-1)
    return float(hits.mean())


def test_a_worse_prediction_is_five_points_worse() -> None:
    """The shipped trace's draft loses 5 % of its best 128 blocks, 6 of them; orders stay orders."""
    trace = load_trace("aime.jsonl")
    worse = worse_trace(trace, None, 128)
    lost = agreement(trace, 128) - agreement(worse, 128)
    assert pytest.approx(6 / 128) == lost
    before, after = (next(iter(each.pred_order.values())) for each in (trace, worse))
    assert np.array_equal(np.sort(before, axis=-1), np.sort(after, axis=-1))
    assert np.array_equal(trace.use_order, worse.use_order)


def test_what_a_request_file_hangs_on(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is asked about with its own requests, closer together or twice as long."""
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    lines += [f"{number * 0.005:.3f},{600 + number % 7 * 100},20" for number in range(80)]
    (beside / "day.csv").write_text("\n".join(lines) + "\n")
    file = ["--workload", "day.csv", "--workload-format", "csv", "--trace", "small.npz"]
    asked = ["--budget", "64", "--tp", "1", "--scheme", "oasis", "--slo", "ttft_p95=150ms"]
    more = ["--workers", "1", "--quiet", "--format", "json", "--sensitivity"]
    assert main(["plan", *file, *asked, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    gpus = {each["change"]: each["gpus"] for each in found["sensitivity"]}
    assert gpus["context"] > found["fleets"][0]["gpus"]
    assert gpus["rate"] > found["fleets"][0]["gpus"]


def test_rates_and_prompts_are_changed_alone() -> None:
    """Arrivals scale, sizes stay; prompts double, arrivals stay; half the host is half."""
    scenario = ScenarioSpec(load=LoadSpec("poisson", 10, 100, 5, 2.0)).scenario()
    fast = with_rate(scenario, Fraction(3, 2)).workload
    assert np.array_equal(scenario.workload.arrival_ps * 2 // 3, fast.arrival_ps)
    assert np.array_equal(scenario.workload.prompt_tokens, fast.prompt_tokens)
    long = with_long_contexts(scenario).workload
    assert np.array_equal(2 * scenario.workload.prompt_tokens, long.prompt_tokens)
    assert np.array_equal(scenario.workload.arrival_ps, long.arrival_ps)
    assert scenario.profile.host.kv_bytes // 2 == with_half_the_host(scenario).host_bytes


def test_where_offload_pays_is_what_run_says(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Throughputs are those of closed loops with the same sizes; the charts end the report."""
    found = planned(capsys, "--where-offload-pays")["where_offload_pays"][0]
    assert "oasis" == found["scheme"]
    assert [250, 500, 2000, 4000] == [each["context_tokens"] for each in found["other_contexts"]]
    small = ["--budget", "64", "--context", "1000", "--output-tokens", "20"]
    small += ["--trace", "small.npz", "--concurrency", "4", "--quiet", "--format", "json"]
    for scheme, key in (("oasis", "output_tokens_per_s"), ("dense", "dense_output_tokens_per_s")):
        options = small if scheme == "oasis" else small[2:]
        assert main(["run", *options, "--scheme", scheme, "--out", scheme]) == 0
        rate = json.loads(capsys.readouterr().out)["throughput"]["output_tokens_per_s"]
        assert rate == found[key][found["concurrency"].index(4)]
    assert main(["plan", *LOAD, "--rate", "150", "--where-offload-pays"]) == 0
    shown = capsys.readouterr().out
    assert "x: requests at once\n  A dense\n  B oasis\n" in shown
    assert "oasis pays, by requests at once, at context 250:" in shown


def test_the_border_at_another_context_was_simulated_on_both_sides(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheme that beats dense from so many on wins there and loses at the one before."""
    spec = ScenarioSpec(traces=("small.npz",), scheme=SMALL)
    dense = on_same_gpus(spec)
    run = make_simulator()
    job = BorderJob(spec, dense, (20_000, 20))
    border = make_border_finder()(job)
    for at, wins in ((border.pays_at, True), (border.loses_at, False)):
        if at is not None:
            rates = [throughput(run(loop(each, at, job.sizes))) or 0.0 for each in (spec, dense)]
            assert wins == (rates[0] > rates[1])
    assert border.pays_at is not None or border.loses_at == CONCURRENCIES[-1]
