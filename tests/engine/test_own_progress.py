"""What a transfer does to the LM head, the draft model and QKV, each told apart or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.pricing import price
from oasis_sim.engine.state import DRAFT, LM_HEAD, QKV
from oasis_sim.engine.streams import RATE_ONE, SELECTION, TRANSFER
from oasis_sim.hardware import Curve, Slowdown, load_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from tests.engine.test_selection_cost import rows

BESIDE = Slowdown(Curve((8.0, 64.0), (1.2, 2.0)), attention=1.1, prediction=1.0)


def h100_with(*, lm_head_per_request: bool, draft_reads_kv: bool, **gather: object) -> CostModel:
    """Return prices of an H100 whose gather slows its neighbours by `BESIDE`."""
    h100 = load_profile("h100")
    costs = h100.engine("vllm")
    changed = replace(costs.transport("sm_gather"), slowdown=BESIDE, **gather)  # type: ignore[arg-type]
    costs = replace(
        costs,
        transports={**costs.transports, "sm_gather": changed},
        lm_head_per_request=lm_head_per_request,
        draft_reads_kv=draft_reads_kv,
    )
    profile = replace(h100, engines={**h100.engines, "vllm": costs})
    return CostModel(profile, "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)


@pytest.mark.parametrize(("covered", "factor"), [(None, 1.2), (Curve.constant(1.5), 1.5)])
def test_each_is_slowed_by_what_it_does(covered: Curve | None, factor: float) -> None:
    """The LM head as linear layers of its own rows, the draft as attention for what it reads."""
    cost = h100_with(lm_head_per_request=True, draft_reads_kv=True, linear_covered=covered)
    found = rows(*[16_384] * 8)
    prices = price(cost, found, 0)
    assert round(RATE_ONE / factor) == prices.own[LM_HEAD, TRANSFER]
    read = cost.draft_read_ps(8 * 16_384) / prices.draft
    assert 0.3 < read < 0.9
    mixed = read * 1.1 + (1 - read) * factor
    assert round(RATE_ONE / mixed) == prices.own[DRAFT, TRANSFER]
    assert np.all(prices.own[QKV] == -1)


def test_qkv_is_slowed_by_its_own_factor() -> None:
    """By its rows; selection slows it as it slows other linear layers."""
    slower = Curve((8.0, 16.0), (1.1, 1.3))
    cost = h100_with(lm_head_per_request=False, draft_reads_kv=False, qkv_slowdown=slower)
    own = price(cost, rows(*[16_384] * 8), 0).own
    assert round(RATE_ONE / 1.3) == own[QKV, TRANSFER]
    linear = cost.slowdowns(16)[0]
    assert round(RATE_ONE / linear[SELECTION]) == own[QKV, SELECTION]
    assert np.all(own[[LM_HEAD, DRAFT]] == -1)


def test_other_engines_slow_them_as_linear_layers() -> None:
    """Where neither is told apart, both go on as the layers do."""
    cost = CostModel(load_profile("h100"), "vllm", load_model("qwen3-8b"), load_scheme("oasis"), 1)
    assert np.all(price(cost, rows(4096, 8192), 0).own == -1)
