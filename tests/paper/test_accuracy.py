"""Figures 4 and 6: prediction accuracy by layer, read off traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.errors import InputError, UsageError
from oasis_sim.hardware import load_profile
from oasis_sim.paper import fig4, fig6
from oasis_sim.paper.accuracy import agreement_by_layer, agreement_pct
from oasis_sim.paper.comparison import Comparison
from oasis_sim.paper.published import load_published
from oasis_sim.paper.setup import Setup
from oasis_sim.trace import AttentionTrace, load_trace
from tests.engine.scenarios import random_trace

WITHIN_POINTS = 1.0


@pytest.fixture(scope="module")
def shipped() -> Setup:
    """Return a setup with the shipped trace."""
    return Setup(load_profile("h100"), "vllm", (load_trace("aime.jsonl"),))


def counted(trace: AttentionTrace, predictor: str, layer: int, top: int) -> float:
    """Count the agreement of one layer with sets, one step and head at a time."""
    orders = trace.pred_order["next"] if predictor == "draft" else trace.use_order
    shares = []
    for step in range(trace.steps - 1):
        for head in range(trace.kv_heads):
            true = set(trace.use_order[step + 1, layer, head, :top].tolist())
            predicted = set(orders[step, layer, head, :top].tolist())
            shares.append(len(true & predicted) / top)
    return 100.0 * sum(shares) / len(shares)


@pytest.mark.parametrize("predictor", ["draft", "previous"])
@pytest.mark.parametrize("top", [1, 20, 64])
def test_agrees_with_counting_sets(predictor: str, top: int) -> None:
    """The array code and plain sets give the same share."""
    trace = random_trace()
    expected = [counted(trace, predictor, layer, top) for layer in range(trace.layers)]
    # A draft that knows the next query: its order is the true one, so that all agree.
    assert agreement_pct(trace, predictor, top) == pytest.approx(expected)


def test_a_wrong_prediction_agrees_by_chance_only() -> None:
    """Predictions of other blocks than the true ones agree nowhere."""
    trace = random_trace()
    worst = {"next": trace.use_order[np.r_[1 : trace.steps, 0]][..., ::-1]}
    assert agreement_pct(replace(trace, pred_order=worst), "draft", 20).tolist() == [0.0, 0.0]


def test_places_without_a_block_agree_with_nothing() -> None:
    """Where orders hold no block, nothing was predicted."""
    trace = random_trace()
    use, predicted = trace.use_order.copy(), trace.pred_order["next"].copy()
    use[..., 10:20], predicted[..., 10:20] = 65535, 65535
    short = replace(trace, use_order=use, pred_order={"next": predicted})
    assert agreement_pct(short, "draft", 20).tolist() == [50.0, 50.0]


def test_layers_that_are_not_recorded_are_empty() -> None:
    """Every layer of the model has an entry, recorded or not; equal traces average to one."""
    trace = random_trace()
    found = agreement_by_layer((trace, trace), "previous", 20)
    assert list(found) == [0, 1, 2, 3]
    assert [found[0], found[1]] == pytest.approx(agreement_pct(trace, "previous", 20).tolist())
    assert [found[2], found[3]] == [None, None]


@pytest.mark.parametrize(
    ("trace", "top", "problem"),
    [
        (random_trace(steps=1), 20, "one step predicts nothing"),
        (random_trace(blocks=96), 96, "starts with 96 and stores 96"),
    ],
)
def test_a_trace_that_cannot_answer_is_refused(
    trace: AttentionTrace, top: int, problem: str
) -> None:
    """A trace with nothing to choose from would agree by itself."""
    with pytest.raises(InputError, match=problem):
        agreement_pct(trace, "previous", top)


def test_traces_of_two_models_are_refused() -> None:
    """Layers of different models have nothing to do with each other."""
    one = random_trace()
    other = replace(one, meta={**one.meta, "model": {**one.meta["model"], "layers": 5}})
    with pytest.raises(UsageError, match="one model"):
        agreement_by_layer((one, other), "draft", 20)


def row_of(found: Comparison, layer: str | int, predictor: str) -> tuple[float | None, float]:
    """Return published and simulated value of one row."""
    (row,) = [row for row in found.rows if row.keys == {"layer": layer, "predictor": predictor}]
    assert row.simulated is not None
    return row.published, row.simulated


def test_figure_6_is_within_a_point(shipped: Setup) -> None:
    """Each recorded layer and the mean are within a point of what was published."""
    found = fig6.compare(shipped, load_published())
    assert len(found.rows) == 37
    for layer in shipped.traces[0].layer_ids:
        published, simulated = row_of(found, layer, "draft")
        assert published == pytest.approx(simulated, abs=WITHIN_POINTS)
    published, simulated = row_of(found, "mean", "draft")
    assert published == pytest.approx(simulated, abs=WITHIN_POINTS)


def test_figure_6_keeps_its_shape(shipped: Setup) -> None:
    """Layers that are harder in the paper are harder in the trace: correlation above 0.5."""
    rows = [row for row in fig6.compare(shipped, load_published()).rows[:-1] if row.simulated]
    values = np.array([[row.published, row.simulated] for row in rows], dtype=float)
    assert np.corrcoef(values.T)[0, 1] > 0.5


@pytest.mark.parametrize(("predictor", "mean"), [("draft", 96.0), ("previous", 83.9)])
def test_figure_4_is_within_a_point(shipped: Setup, predictor: str, mean: float) -> None:
    """The means over layers are within a point of what was published."""
    published, simulated = row_of(fig4.compare(shipped, load_published()), "mean", predictor)
    assert published == mean
    assert simulated == pytest.approx(mean, abs=WITHIN_POINTS)


def test_another_model_has_no_published_numbers() -> None:
    """The published layers are those of Qwen3-8B; the origin of the trace is said."""
    setup = Setup(load_profile("h100"), "vllm", (random_trace(blocks=256),))
    for found in (fig4.compare(setup, load_published()), fig6.compare(setup, load_published())):
        assert {row.published for row in found.rows} == {None}
        assert any("synthetic" in note for note in found.notes)
