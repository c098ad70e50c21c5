"""Figure 13: throughput by budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.engine import simulate
from oasis_sim.hardware import load_profile
from oasis_sim.paper import fig13, table2
from oasis_sim.paper.comparison import Comparison
from oasis_sim.paper.published import load_published
from oasis_sim.paper.setup import Setup
from tests.engine.scenarios import random_trace


def setup_of(blocks: int = 256, stored: int = 256) -> Setup:
    """Return a setup with a random trace of so many blocks, the best of them stored."""
    trace = random_trace(blocks=blocks)
    short = replace(
        trace,
        use_order=trace.use_order[..., :stored],
        pred_order={name: order[..., :stored] for name, order in trace.pred_order.items()},
    )
    return Setup(load_profile("h100"), "vllm", (short,))


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Run the figure once, on a random trace."""
    return fig13.compare(setup_of(), load_published())


def test_rows_have_the_keys_of_the_figure(found: Comparison) -> None:
    """Two models, four budgets, one metric; nothing is published."""
    assert [(model, budget) for model in ("8b", "235b") for budget in (0, 64, 128, 192)] == [
        (row.keys["model"], row.keys["budget_blocks"]) for row in found.rows
    ]
    assert {row.metric for row in found.rows} == {"output_tokens_per_s"}
    assert {row.published for row in found.rows} == {None}


@pytest.mark.parametrize("model", ["8b", "235b"])
def test_a_larger_budget_is_slower(found: Comparison, model: str) -> None:
    """More tokens attended and kept: fewer tokens per second."""
    rates = [row.simulated for row in found.rows if row.keys["model"] == model][1:]
    assert None not in rates
    assert rates == sorted(rates, reverse=True)


def test_128_blocks_are_the_scenario_of_table_2(found: Comparison) -> None:
    """The rate at 128 blocks is that of table 2 at its default ratio."""
    table = table2.metrics(simulate(table2.scenario(setup_of(), 0.05)).steps)
    (row,) = [row for row in found.rows if tuple(row.keys.values()) == ("8b", 128)]
    assert row.simulated == pytest.approx(table["output_tokens_per_s"], rel=0.02)
    assert row.extra["running_batch"] == pytest.approx(128, rel=0.01)


def test_prefill_costs_throughput(found: Comparison) -> None:
    """Over all steps the rate is lower than in those that only decode."""
    for row in found.rows:
        with_prefill = row.extra["with_prefill_tokens_per_s"]
        assert row.simulated is not None
        assert with_prefill is not None
        assert 0.5 * row.simulated < with_prefill < row.simulated


def test_a_budget_that_the_trace_does_not_hold_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 150 stored blocks the point of 192 is empty, and a note says why."""
    monkeypatch.setattr(fig13, "MODELS", {"8b": fig13.MODELS["8b"]})
    monkeypatch.setattr(fig13, "BUDGETS", (64, 192))
    heard: list[tuple[int, int]] = []
    found = fig13.compare(
        setup_of(250, 150), load_published(), lambda done, total: heard.append((done, total))
    )
    assert [row.simulated is None for row in found.rows] == [False, True]
    assert any("8b, 192 blocks" in note and "stores 150" in note for note in found.notes)
    assert len({tuple(row.to_json()) for row in found.rows}) == 1
    assert heard == [(0, 2), (1, 2), (2, 2)]
