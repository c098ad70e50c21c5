"""What a plan adds on request: what it hangs on, where offloading pays, and charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.cli.main import main
from oasis_sim.engine.spec import ScenarioSpec
from oasis_sim.plan.crossover import CONCURRENCIES, Crossover
from oasis_sim.plan.sensitivity import with_slow_link
from oasis_sim.report.chart import WIDTH, Bar, draw
from oasis_sim.trace import save_trace
from tests.strategies import make_trace

LOAD = [
    *["--budget", "64", "--context", "1000", "--output-tokens", "20", "--requests", "60"],
    *["--trace", "small.npz", "--rate", "150", "--tp", "1"],
    *["--slo", "ttft_p95=150ms,tpot_p99=25ms", "--workers", "1", "--quiet"],
]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), tmp_path / "small.npz")
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON of a plan that must be found."""
    assert main(["plan", *LOAD, *arguments, "--format", "json"]) == 0
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
    assert words in Crossover("oasis", offload, dense).sentence()


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
    assert {"rate", "context", "link", "host"} == set(gpus)
    base = found["fleets"][0]["gpus"]
    assert all(number >= base for number in gpus.values())
    changed = planned(capsys, "--scheme", "oasis", "--rate", "225")
    assert changed["fleets"][0]["gpus"] == gpus["rate"]


def test_where_offload_pays_is_what_run_says(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Throughputs are those of closed loops with the same sizes; the charts end the report."""
    found = planned(capsys, "--where-offload-pays")["where_offload_pays"][0]
    assert "oasis" == found["scheme"]
    small = ["--budget", "64", "--context", "1000", "--output-tokens", "20"]
    small += ["--trace", "small.npz", "--concurrency", "4", "--quiet", "--format", "json"]
    for scheme, key in (("oasis", "output_tokens_per_s"), ("dense", "dense_output_tokens_per_s")):
        options = small if scheme == "oasis" else small[2:]
        assert main(["run", *options, "--scheme", scheme, "--out", scheme]) == 0
        rate = json.loads(capsys.readouterr().out)["throughput"]["output_tokens_per_s"]
        assert rate == found[key][found["concurrency"].index(4)]
    assert main(["plan", *LOAD, "--where-offload-pays"]) == 0
    assert "output tokens/s by requests at once" in capsys.readouterr().out
