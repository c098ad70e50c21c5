"""What a transfer does to the LM head and the draft model, which run once per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.pricing import price
from oasis_sim.engine.state import DRAFT, LM_HEAD
from oasis_sim.engine.streams import RATE_ONE, TRANSFER
from oasis_sim.hardware import Curve, Slowdown, load_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from tests.engine.test_selection_cost import rows

BESIDE = Slowdown(Curve((8.0, 64.0), (1.2, 2.0)), attention=1.1, prediction=1.0)


@pytest.mark.parametrize(("covered", "factor"), [(None, 1.2), (Curve.constant(1.5), 1.5)])
def test_each_is_slowed_by_what_it_does(covered: Curve | None, factor: float) -> None:
    """The LM head as linear layers of its own rows, the draft as attention for what it reads."""
    h100 = load_profile("h100")
    costs = h100.engine("vllm")
    gather = replace(costs.transport("sm_gather"), slowdown=BESIDE, linear_covered=covered)
    costs = replace(
        costs,
        transports={**costs.transports, "sm_gather": gather},
        lm_head_per_request=True,
        draft_reads_kv=True,
    )
    profile = replace(h100, engines={**h100.engines, "vllm": costs})
    cost = CostModel(profile, "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    found = rows(*[16_384] * 8)
    prices = price(cost, found, 0)
    assert round(RATE_ONE / factor) == prices.once[LM_HEAD, TRANSFER]
    read = cost.draft_read_ps(8 * 16_384) / prices.draft
    assert 0.3 < read < 0.9
    mixed = read * 1.1 + (1 - read) * factor
    assert round(RATE_ONE / mixed) == prices.once[DRAFT, TRANSFER]


def test_other_engines_slow_them_as_linear_layers() -> None:
    """Where neither is told apart, both go on as the layers do."""
    cost = CostModel(load_profile("h100"), "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    assert np.all(price(cost, rows(4096, 8192), 0).once == -1)
