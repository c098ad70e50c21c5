"""Figure 2: all sixteen published percentages, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.paper import fig2
from oasis_sim.paper.published import load_published
from oasis_sim.paper.retrieval import serial_retrieval
from tests.strategies import models

PROFILE = load_profile("h100")

EXPECTED = {
    1024: [14, 24, 38, 52],
    2048: [24, 38, 52, 64],
    4096: [38, 52, 64, 73],
    8192: [52, 64, 73, 78],
}


def test_all_sixteen_percentages_are_exact() -> None:
    """The figure's numbers follow from the profile's nominal bandwidths."""
    found = fig2.compare(PROFILE, load_published())
    simulated = {
        attended: [row.simulated for row in found.rows if row.keys["attended_tokens"] == attended]
        for attended in EXPECTED
    }
    assert simulated == EXPECTED
    assert [row.published for row in found.rows] == [row.simulated for row in found.rows]
    assert found.mape_pct == 0.0


def test_exact_share_is_beside_the_rounded_one() -> None:
    """Each row also gives the share before rounding."""
    for row in fig2.compare(PROFILE, load_published()).rows:
        assert row.simulated == round(row.extra["simulated_exact"])


def test_stages_by_hand() -> None:
    """Batch 8, 1,024 tokens: 65.52 GB of weights, 2.147 GB of KV, a tenth of it over PCIe."""
    stages = serial_retrieval(PROFILE, load_model("qwen3-32b"), 8, 1024)
    assert stages.weights_s == pytest.approx(65.524e9 / 3.35e12, rel=1e-4)
    assert stages.attention_s == pytest.approx(8 * 1024 * 262_144 / 3.35e12)
    assert stages.retrieval_s == pytest.approx(0.1 * 8 * 1024 * 262_144 / 64e9)


@given(model=models(), batch=st.integers(1, 512), attended=st.integers(1, 2**17))
def test_shares_add_up(model: object, batch: int, attended: int) -> None:
    """Three shares make the whole, and a larger batch retrieves no smaller share."""
    stages = serial_retrieval(PROFILE, model, batch, attended)
    parts = (stages.weights_s, stages.attention_s, stages.retrieval_s)
    assert sum(stages.share_pct(part) for part in parts) == pytest.approx(100.0)
    larger = serial_retrieval(PROFILE, model, batch + 1, attended)
    assert larger.share_pct(larger.retrieval_s) >= stages.share_pct(stages.retrieval_s) - 1e-9
