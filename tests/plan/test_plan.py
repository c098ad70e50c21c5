"""`oasis-sim plan`: the smallest fleet, found by bisection, that meets targets by simulation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.errors import InputError, UsageError
from oasis_sim.plan.prices import Prices, read_prices
from oasis_sim.plan.search import smallest
from oasis_sim.plan.slo import parse_slo
from oasis_sim.units import PS_PER_MS
from tests.plan.command import plan, planned

ROOT = Path(__file__).parents[2]
SIZES = ["--budget", "64", "--context", "1000", "--output-tokens", "20", "--requests", "60"]
LOAD = [*SIZES, "--trace", "small.npz", "--rate", "150", "--tp", "1"]
SLO = "ttft_p95=150ms,tpot_p99=25ms"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500))
def test_bisection_finds_the_threshold(threshold: int, limit: int, start: int) -> None:
    """Both ends of the bracket were asked, one apart, with about two questions per doubling."""
    asked: dict[int, bool] = {}

    def is_enough(number: int) -> bool:
        asked[number] = number >= threshold
        return asked[number]

    bracket = smallest(is_enough, limit, start)
    assert len(asked) <= 20
    if threshold > limit:
        assert (limit, None) == (bracket.fails, bracket.enough)
        return
    assert (threshold - 1, threshold) == (bracket.fails, bracket.enough)
    assert asked[threshold]
    assert threshold == 1 or not asked[threshold - 1]


def test_targets_are_read_with_their_units() -> None:
    """Metric, statistic and limit of each target."""
    first, second = parse_slo("ttft_p95=2s, tpot_mean = 50 ms")
    assert ("ttft", "p95", 2000 * PS_PER_MS) == (first.metric, first.statistic, first.limit_ps)
    assert ("tpot_mean", 50 * PS_PER_MS) == (second.name, second.limit_ps)


@pytest.mark.parametrize(
    "text",
    ["", "ttft=2s", "ttft_p95", "ttft_p0=1s", "ttft_p100=1s", "foo_p95=1s", "ttft_p95=2", "a,"],
)
def test_other_targets_are_refused(text: str) -> None:
    """What is no target, or has no unit, is a usage error."""
    with pytest.raises(UsageError, match="--slo"):
        parse_slo(text)


def test_a_target_twice_or_at_zero_is_refused() -> None:
    """A target has one limit, above zero."""
    with pytest.raises(UsageError, match="twice"):
        parse_slo("ttft_p95=2s,ttft_p95=3s")
    with pytest.raises(UsageError, match="below zero"):
        parse_slo("ttft_p95=0 s")


def test_the_recommendation_holds_and_one_gpu_fewer_does_not(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run again through `run`, the fleet meets every target as stated; with one GPU less not."""
    best = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", SLO)["fleets"][0]
    assert best["gpus"] == best["replicas"] >= 2
    assert best["replicas"] - 1 == best["fails_with_replicas"]

    def latencies(replicas: int) -> dict[str, float]:
        words = shlex.split(best["command"])[1:]
        words[words.index("--rate") + 1] = repr(150.0 / replicas)
        assert main([*words, "--quiet", "--out", f"r{replicas}", "--format", "json"]) == 0
        latency = json.loads(capsys.readouterr().out)["latency"]
        return {"ttft_p95": latency["ttft_ms"]["p95"], "tpot_p99": latency["tpot_ms"]["p99"]}

    kept, fewer = latencies(best["replicas"]), latencies(best["replicas"] - 1)
    for target in best["targets"]:
        assert pytest.approx(target["value_ms"]) == kept[target["name"]]
        assert kept[target["name"]] <= target["limit_ms"]
    assert any(fewer[target["name"]] > target["limit_ms"] for target in best["targets"])


def test_prices_decide_where_they_are_known(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without prices the fewest GPUs come first, with prices the cheapest; the cost is exact."""
    (beside / "prices.yaml").write_text(
        "currency: EUR\ngpu_hour: {h100: 4.5, a100: 0.01, h10: 3}\n"
    )
    asked = [*LOAD, "--scheme", "oasis", "--gpu", "a100,h100", "--slo", SLO]
    free = planned(capsys, *asked)
    assert ["h100", "a100"] == [fleet["profile"] for fleet in free["fleets"]]
    assert "datasheet limits, engine not measured there: a100" in free["sentences"]
    assert [None, None] == [each["cost_per_million_output_tokens"] for each in free["fleets"]]
    priced = planned(capsys, *asked, "--price-file", "prices.yaml")
    assert ["a100", "h100"] == [fleet["profile"] for fleet in priced["fleets"]]
    assert any(
        each == "the price of h10 is not used: no profile has this name; did you mean 'h100'?"
        for each in priced["sentences"]
    )
    assert not any("the price of a100" in each for each in priced["sentences"])
    fleet = priced["fleets"][1]
    expected = fleet["gpus"] * 4.5 / 3600 / (150 * 20) * 1e6
    assert pytest.approx(expected) == fleet["cost_per_million_output_tokens"]


def test_what_the_fleet_takes_is_said_with_each_capacity(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory and links of a GPU beside the capacities as given, and a bound of the energy."""
    capacities = ["--hbm-memory", "70 GiB", "--host-memory", "40 GB", "--pcie", "20 GB/s"]
    found = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", SLO, *capacities)
    fleet = found["fleets"][0]
    assert (70 * 2**30, 40 * 10**9) == (fleet["hbm_capacity_bytes"], fleet["host_capacity_bytes"])
    assert 0 < fleet["host_peak_bytes"] < fleet["host_capacity_bytes"]
    assert 20.0 == fleet["pcie_d2h_limit_gb_per_s"]
    assert 0 < fleet["pcie_d2h_utilisation"] < 1
    words = "\n".join(found["sentences"])
    assert "(70.0 GiB in all), host memory" in words
    expected = fleet["gpus"] * 700 / (150 * 20) * 1e6 / 3.6e6
    assert pytest.approx(expected) == fleet["energy_kwh_per_million_output_tokens_at_most"]
    for option in ("--hbm-memory", "--host-memory", "--pcie"):
        assert option in fleet["command"]


def test_targets_of_several_options_must_all_be_met(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--slo A --slo B` is `--slo A,B`; a target given twice is refused, wherever it stands."""
    first, second = SLO.split(",")
    merged = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", first, "--slo", second)
    asked = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", SLO)
    assert len(merged["targets"]) == 2
    assert asked["fleets"] == merged["fleets"]
    assert asked["inputs"] == merged["inputs"]
    assert f"--slo {first} --slo {second}" in merged["command"]
    assert plan(*LOAD, "--slo", SLO, "--slo", first) == 2
    assert "twice" in capsys.readouterr().err


def test_equal_fleets_are_all_named_and_the_smaller_card_is_first(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left of a target does not make a dearer card the better one."""
    load = [*SIZES, "--trace", "small.npz", "--rate", "1", "--tp", "1", "--scheme", "oasis"]
    load += ["--slo", "tpot_p99=1s", "--gpu", "h200,h100"]
    found = planned(capsys, *load)
    assert [("h100", 1), ("h200", 1)] == [
        (each["profile"], each["gpus"]) for each in found["fleets"]
    ]
    smaller, larger = (each["targets"][0]["head_room"] for each in found["fleets"])
    assert smaller < larger
    tie = "tie, 1 GPU each: h100 with oasis, h200 with oasis"
    assert any(each.startswith(tie) and "give --price-file" in each for each in found["notes"])
    (beside / "prices.yaml").write_text("currency: EUR\ngpu_hour: {h100: 4.5, h200: 4}\n")
    priced = planned(capsys, *load, "--price-file", "prices.yaml")
    assert ["h200", "h100"] == [fleet["profile"] for fleet in priced["fleets"]]
    assert not [text for text in priced["notes"] if text.startswith("tie")]


def test_cost_needs_a_price() -> None:
    """No price is made up."""
    assert Prices("USD", {"h100": 3.6}).per_million_tokens("h200", 1, 1.0) is None
    assert pytest.approx(2_000) == Prices("USD", {"h100": 3.6}).per_million_tokens("h100", 2, 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu_hour: {h100: 1}", "currency"),
        ("currency: USD\ngpu_hour: {h100: -1}", "out of range"),
        ("currency: USD\ngpu_hour: {h100: two}", "number"),
        ("currency: USD\ngpu_hour: {}\nyear: 2", "not a known key"),
    ],
)
def test_mistakes_in_a_price_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    """Each mistake is bad input with its file."""
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_prices(str(path))


def test_what_cannot_be_met_says_what_is_missing(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 4: a target that a request alone misses, a model that does not fit, too few GPUs."""
    assert plan(*LOAD, "--slo", "tpot_p99=1ms") == 4
    shown = capsys.readouterr()
    assert "missed even by a request alone: tpot_p99" in shown.out
    assert "no fleet meets the targets" in shown.err
    assert plan(*LOAD, "--slo", SLO, "--model", "qwen3-235b-a22b") == 4
    assert "does not fit" in capsys.readouterr().out
    assert plan(*LOAD, "--slo", SLO, "--most-gpus", "1", "--scheme", "oasis") == 4
    assert "missed with 1 GPUs: ttft_p95" in capsys.readouterr().out


def test_cap_and_budget_may_vary(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value has a fleet under its own name; where it means nothing there is one fleet."""
    asked = [*LOAD[2:], "--scheme", "dense,oasis", "--slo", SLO]
    vary = ["--vary", "fetch_ratio=0.25,1", "--vary", "budget=64,128"]
    found = planned(capsys, *asked, *vary)
    names = {each["scheme"]: each for each in found["fleets"]}
    assert 5 == len(names)
    assert "dense" in names
    fleet = names["oasis fetch_ratio 0.25 budget 64"]
    assert "--fetch-ratio 0.25" in fleet["command"]
    assert "--budget 64" in fleet["command"]
    words = shlex.split(fleet["command"])[1:]
    assert main([*words, "--quiet", "--out", "r", "--format", "json"]) == 0
    latency = json.loads(capsys.readouterr().out)["latency"]
    values = {each["name"]: each["value_ms"] for each in fleet["targets"]}
    assert pytest.approx(values["ttft_p95"]) == latency["ttft_ms"]["p95"]


@pytest.mark.parametrize("vary", ["model=a,b", "fetch_ratio=2", "budget", "fetch_ratio="])
def test_what_cannot_vary_is_refused(
    beside: Path, capsys: pytest.CaptureFixture[str], vary: str
) -> None:
    """Code 2 and one line."""
    assert plan(*LOAD, "--slo", SLO, "--vary", vary) == 2
    assert 1 == len(capsys.readouterr().err.splitlines())


def test_a_growing_queue_is_no_plan(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fleet that falls behind is refused even where no target sees the queue."""
    found = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", "tpot_p99=10s")["fleets"][0]
    assert found["replicas"] >= 2
    assert "still wait at the end" in found["why_fewer_fail"]


def test_a_request_file_is_dealt_out_in_turn(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fleet for a file meets the targets; the table says that the first replica was run."""
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    lines += [f"{number * 0.005:.3f},{600 + number % 7 * 100},20" for number in range(120)]
    (beside / "day.csv").write_text("\n".join(lines) + "\n")
    load = ["--workload", "day.csv", "--workload-format", "csv", "--trace", "small.npz"]
    arguments = [*load, "--budget", "64", "--tp", "1", "--scheme", "oasis", "--slo", SLO]
    found = planned(capsys, *arguments)["fleets"][0]
    assert found["replicas"] >= 2
    assert all(target["value_ms"] <= target["limit_ms"] for target in found["targets"])
    assert plan(*arguments) == 0
    shown = capsys.readouterr().out
    assert "dealt out in turn" in shown
    assert f"tpot_p99 rests on as few as {-(-120 // found['replicas'])} samples" in shown

    def reached(every: int) -> list[float]:
        words = shlex.split(found["command"])[1:]
        words[words.index("--every") + 1] = str(every)
        assert main([*words, "--quiet", "--out", f"every{every}", "--format", "json"]) == 0
        latency = json.loads(capsys.readouterr().out)["latency"]
        return [latency["ttft_ms"]["p95"], latency["tpot_ms"]["p99"]]

    kept, fewer = reached(found["replicas"]), reached(found["replicas"] - 1)
    limits = [target["limit_ms"] for target in found["targets"]]
    assert pytest.approx([target["value_ms"] for target in found["targets"]]) == kept
    assert all(value <= limit for value, limit in zip(kept, limits, strict=True))
    assert any(value > limit for value, limit in zip(fewer, limits, strict=True))


def test_a_larger_fleet_that_fails_is_told(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where two replicas see the light requests only and three do not, the plan says so."""
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    lines += [f"{n * 0.3:.1f},{4000 if n % 2 else 200},20" for n in range(60)]
    (beside / "odd.csv").write_text("\n".join(lines) + "\n")
    load = ["--workload", "odd.csv", "--workload-format", "csv", "--trace", "small.npz"]
    asked = [*load, "--budget", "64", "--tp", "1", "--scheme", "oasis", "--slo", "ttft_p95=60ms"]
    found = planned(capsys, *asked)
    assert (2, True) == (found["fleets"][0]["replicas"], found["fleets"][0]["larger_fails"])
    assert any("3 replicas miss what 2 meet" in each for each in found["sentences"])


def test_workers_change_nothing(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One process or two: the same document."""
    alone = planned(capsys, *LOAD, "--slo", SLO)
    words = ["plan", *LOAD, "--slo", SLO, "--workers", "2", "--quiet", "--format", "json"]
    assert main(words) == 0
    assert alone == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slo", "ttft_p95=1s"], "needs a load"),
        (["--rate", "1"], "--slo"),
        (["--rate", "1", "--slo", "x"], "METRIC_STATISTIC=TIME"),
        (["--rate", "1", "--slo", "ttft_p95=1s", "--gpu", "h100", "--profile", "h200"], "one"),
        (["--rate", "1", "--slo", "ttft_p95=1s", "--steps", "3"], "--steps"),
        (["--rate", "1", "--slo", "ttft_p95=nan s"], "is not a time"),
        (["--rate", "1", "--slo", "\x1b[31mttft_p95=1s"], "METRIC_STATISTIC=TIME"),
        (["--rate", "1e-9", "--slo", "ttft_p95=1s"], "raise the rate"),
        (["--rate", "1", "--slo", "ttft_p95=1s", "--pcie", "7"], "write 4, 5 or 6"),
        (["--rate", "1", "--slo", "ttft_p95=1s", "--every", "2"], "--workload FILE"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """What is asked wrongly is said in one line, with code 2; control characters do no harm."""
    assert plan(*arguments) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert 1 == len(shown.splitlines())
    assert shown.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", ""], "name is empty"),
        (["--gpu", "h100,h9000"], "h9000"),
        (["--scheme", "dense,"], "name is empty"),
        (["--price-file", "nonesuch.yaml"], "no such file"),
    ],
)
def test_names_that_are_none(
    beside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """A card, scheme or file that is not there is bad input, said in one line."""
    assert plan(*LOAD, "--slo", SLO, *arguments) == 3
    shown = capsys.readouterr().err
    assert words in shown
    assert 1 == len(shown.splitlines())


def test_requests_that_all_arrive_at_once_have_no_rate(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without a rate is refused before anything is simulated."""
    rows = ["arrival_s,prompt_tokens,output_tokens", *["3,100,5"] * 4]
    (beside / "burst.csv").write_text("\n".join(rows) + "\n")
    load = ["--workload", "burst.csv", "--workload-format", "csv", "--trace", "small.npz"]
    assert plan(*load, "--budget", "64", "--slo", SLO) == 3
    assert "burst.csv: all requests arrive at once" in capsys.readouterr().err


def test_a_rate_beyond_what_prefill_can_do_is_no_plan(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So few requests that none waits do not hide that prefill could never keep up."""
    load = [*SIZES[:-1], "5", "--trace", "small.npz", "--tp", "1", "--scheme", "oasis"]
    assert plan(*load, "--rate", "1e9", "--slo", "tpot_p99=9 s") == 4
    assert "prefill alone takes" in capsys.readouterr().out


def test_energy_needs_a_known_power(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without the board's power has no energy, and none is made up."""
    text = (ROOT / "hw_profiles" / "h100.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("  power:")]
    assert len(lines) == len(text.splitlines()) - 1
    (beside / "mine.yaml").write_text("\n".join(lines) + "\n")
    found = planned(capsys, *LOAD, "--scheme", "oasis", "--slo", SLO, "--gpu", "mine.yaml")
    fleet = found["fleets"][0]
    assert (None, None) == (
        fleet["gpu_power_w"],
        fleet["energy_kwh_per_million_output_tokens_at_most"],
    )
    assert "energy" not in "\n".join(found["sentences"])
