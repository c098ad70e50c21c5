"""Table 2: the published step times, rates and bytes, from one set of engine constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.errors import InputError, RunFailed
from oasis_sim.fileio import find_input
from oasis_sim.hardware import load_profile
from oasis_sim.paper import table2
from oasis_sim.paper.comparison import Comparison
from oasis_sim.paper.published import load_published
from oasis_sim.paper.setup import Setup
from oasis_sim.trace import load_trace
from tests.engine.scenarios import random_trace

TRACE = "aime.jsonl"
TOLERANCE_PCT = 5.0


@pytest.fixture(scope="module")
def reproduced() -> Comparison:
    """Run the table once with the shipped trace."""
    try:
        find_input(TRACE, "trace")
    except InputError:
        pytest.skip(f"{TRACE} is not among the shipped traces")
    setup = Setup(load_profile("h100"), "vllm", (load_trace(TRACE),))
    return table2.compare(setup, load_published())


@pytest.mark.parametrize("ratio", table2.RATIOS)
@pytest.mark.parametrize("metric", table2.UNITS)
def test_within_five_percent(reproduced: Comparison, metric: str, ratio: float) -> None:
    """Every metric at every fetch ratio is within 5 % of the published number."""
    (row,) = [
        row for row in reproduced.rows if row.metric == metric and row.keys["fetch_ratio"] == ratio
    ]
    assert row.published is not None
    assert row.simulated == pytest.approx(row.published, rel=TOLERANCE_PCT / 100)


def test_says_that_the_trace_is_synthetic(reproduced: Comparison) -> None:
    """The result carries the origin of its trace."""
    assert any("synthetic" in note for note in reproduced.notes)


def small_setup() -> Setup:
    """Return a setup with a random trace that stores enough blocks."""
    return Setup(load_profile("h100"), "vllm", (random_trace(blocks=256),))


def test_every_row_has_its_key_metric_and_unit() -> None:
    """Six ratios, three metrics, each with a published number."""
    found = table2.compare(small_setup(), load_published())
    assert [(ratio, metric) for ratio in table2.RATIOS for metric in table2.UNITS] == [
        (row.keys["fetch_ratio"], row.metric) for row in found.rows
    ]
    assert all(row.published is not None and row.simulated is not None for row in found.rows)


def test_more_fetching_never_takes_less_time() -> None:
    """Bytes and step time grow with the fetch ratio."""
    found = table2.compare(small_setup(), load_published())
    for metric in ("step_ms", "fetch_gb_per_step"):
        values = [row.simulated for row in found.rows if row.metric == metric]
        assert values == sorted(values)


def test_says_when_the_trace_is_of_another_model() -> None:
    """A trace of another model is named as what it is."""
    found = table2.compare(small_setup(), load_published())
    assert "Qwen3-8B moves blocks as trace random of tiny says" in found.notes


def test_progress_counts_the_ratios() -> None:
    """The caller hears of every run and of the end."""
    heard: list[tuple[int, int]] = []
    table2.compare(small_setup(), load_published(), lambda done, total: heard.append((done, total)))
    assert heard == [(done, 6) for done in range(7)]


def test_a_card_without_room_is_refused() -> None:
    """On a smaller card the 128 requests do not decode together, and the message says so."""
    setup = small_setup()
    small = replace(setup.profile, gpu=replace(setup.profile.gpu, hbm_bytes=60 * 2**30))
    with pytest.raises(RunFailed, match="of 128 requests decode together"):
        table2.compare(replace(setup, profile=small), load_published())
