"""A decode step in parts: they add up, and what is hidden does not count twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oasis_sim.engine import simulate
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.paper.breakdown import Breakdown, breakdown_of, breakdown_scenario
from oasis_sim.paper.retrieval import serial_retrieval
from oasis_sim.paper.setup import Setup
from oasis_sim.scheme import load_scheme
from tests.engine.scenarios import random_trace


def split(
    scheme: str, engine: str = "vllm", context_tokens: int = 4096, *, inline: bool = False
) -> Breakdown:
    """Return the breakdown of eight requests on Qwen3-8B; `inline`: prediction before attention."""
    batch = 8
    profile, model = load_profile("h100"), load_model("qwen3-8b")
    if inline:
        costs = replace(profile.engine(engine), prediction_inline=True, prediction_slowdown=None)
        profile = replace(profile, engines={engine: costs})
    traces = () if scheme == "dense" else (random_trace(blocks=256),)
    setup = Setup(profile, engine, traces)
    scenario = breakdown_scenario(setup, model, load_scheme(scheme), batch, context_tokens)
    return breakdown_of(serial_retrieval(profile, model, batch, 2048), simulate(scenario))


@pytest.mark.parametrize("scheme", ["oasis", "on-demand", "quest", "dense"])
def test_parts_add_up_to_the_step(scheme: str) -> None:
    """The critical path is the step, with nothing left over."""
    found = split(scheme)
    assert sum(found.simulated.values()) == pytest.approx(found.step_ms)
    rows = {row["stage"]: row for row in found.rows()}
    assert rows["tpot"]["simulated_ms"] == found.step_ms
    assert rows["tpot"]["serial_share_pct"] == pytest.approx(100.0)


def test_on_demand_waits_for_its_fetches() -> None:
    """Fetched on demand, the wait holds prediction, selection and transfer."""
    found = split("on-demand")
    hidden = sum(found.background.values())
    assert found.simulated["retrieval"] == pytest.approx(hidden, rel=1e-3)


@pytest.mark.parametrize("scheme", ["oasis", "on-demand", "dense"])
def test_parts_add_up_with_prediction_inline(scheme: str) -> None:
    """A scan in the foreground belongs to retrieval; on demand it is inside the wait already."""
    found = split(scheme, inline=True)
    assert sum(found.simulated.values()) == pytest.approx(found.step_ms)
    assert found.simulated["other"] < 1e-3 * found.step_ms
    if scheme == "oasis":
        beside = split(scheme).simulated["retrieval"]
        assert found.simulated["retrieval"] - beside >= 0.9 * found.background["prediction"] > 0


def test_quest_waits_for_its_scan_and_fetches_nothing() -> None:
    """With all KV in HBM the wait holds prediction and selection; no block moves."""
    found = split("quest")
    assert found.background["transfer"] == 0.0
    assert found.simulated["retrieval"] == pytest.approx(sum(found.background.values()), rel=1e-3)
    ideal = [split(name, "roofline", 16_384).simulated["attention"] for name in ("quest", "dense")]
    assert ideal[0] < ideal[1] / 4


def test_dense_has_no_background() -> None:
    """Nothing moves, nothing waits."""
    found = split("dense")
    assert found.background == {}
    assert found.simulated["retrieval"] == 0.0


def test_contexts_within_the_budget_stay_dense() -> None:
    """Below the budget a sparse scheme attends all, and nothing moves."""
    found = split("oasis", context_tokens=10)
    assert found.background["transfer"] == 0.0
    assert found.simulated["retrieval"] == 0.0
    assert sum(found.simulated.values()) == pytest.approx(found.step_ms)


def test_serial_columns_are_the_formula() -> None:
    """Three serial stages and their sum; other parts have no serial time."""
    found = split("oasis", "roofline")
    rows = {row["stage"]: row for row in found.rows()}
    assert rows["weights"]["serial_ms"] == pytest.approx(1e3 * found.serial.weights_s)
    assert rows["launch"]["serial_ms"] is None
    assert rows["transfer"]["critical_path"] is False
