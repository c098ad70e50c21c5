"""HiSparse on a latent cache: one head per layer, fetched token by token."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from oasis_sim.engine import RunResult, simulate
from oasis_sim.metrics import check_conservation
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.trace import AttentionTrace
from oasis_sim.trace.synth import synthesize
from oasis_sim.trace.synth_presets import preset
from tests.engine.scenarios import TINY, scenario

#: 512 latent and 64 rotary elements of 2 bytes, as keys and values of one head.
LATENT_BYTES = 1152
LATENT = dataclasses.replace(TINY, name="latent", kv_heads=1, head_dim=LATENT_BYTES // 4)
BUDGET = 256


@cache
def token_trace() -> AttentionTrace:
    """Return a restless synthetic trace of single tokens and one head."""
    shape = {"block_tokens": 1, "kv_heads": 1, "recorded_heads": 1, "recorded_layers": 2}
    size = {"context_tokens": 4096, "stored_blocks": 512, "steps": 24}
    return synthesize(preset("restless").replace(**shape, **size), 1)


@cache
def run(name: str, pool: float) -> RunResult:
    """Simulate a preset at token granularity."""
    scheme = load_scheme(name)
    scheme = with_options(scheme, block_tokens=1, budget_tokens=BUDGET, pool_factor=pool)
    case = scenario(scheme)
    return simulate(dataclasses.replace(case, model=LATENT, traces=(token_trace(),)))


def missing(name: str, pool: float) -> float:
    """Return the share of the selected tokens that miss the buffer."""
    steps = run(name, pool).steps
    selected = steps.sparse_rows.astype(np.int64).sum() * LATENT.layers * BUDGET
    return float(steps.admitted_blocks.sum() / selected)


@pytest.mark.parametrize("name", ["hisparse", "belady"])
def test_single_latents_cross_the_link(name: str) -> None:
    """Every miss moves 1,152 bytes, and nothing is selected that is not fetched or resident."""
    result = run(name, 2.0)
    check_conservation(result)
    steps = result.steps
    assert steps.admitted_blocks.any()
    assert np.array_equal(steps.h2d_bytes, steps.admitted_blocks * LATENT_BYTES)
    assert not steps.deferred_blocks.any()


def test_a_hot_buffer_larger_than_the_budget_pays() -> None:
    """The order that HiSparse publishes: 1x, 2x, 2x by Belady, 4x of the selected tokens."""
    order = [("hisparse", 1.0), ("hisparse", 2.0), ("belady", 2.0), ("hisparse", 4.0)]
    shares = [missing(*each) for each in order]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] < 0.6 * shares[0]
