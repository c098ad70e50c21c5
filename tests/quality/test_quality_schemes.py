"""The schemes of others, decoded: their index of keys, corrections, rehearsal, rebuilt keys."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

import torch
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError, UsageError
from oasis_sim.quality import measure_quality, own_units, vary_scheme
from oasis_sim.quality.decode import plan_of
from oasis_sim.quality.drift import QueryDrift
from oasis_sim.quality.key_index import DIRECTIONS, EXTREMES, MEANS, KeyIndex
from oasis_sim.quality.lowrank import Rotation, check_rotation
from oasis_sim.quality.options import index_of
from oasis_sim.quality.rehearse import rehearsed
from oasis_sim.quality.summaries import outlier_blocks, outward_e4m3, summary_of
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.orders import bound_scores
from oasis_sim.scheme import load_scheme, with_options
from tests.quality.test_quality_study import STEPS, model, options, prompt, small

__all__ = ["model", "prompt"]

CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
E4M3 = CODES[torch.isfinite(CODES)]


def case(model, prompt, scheme, **more):
    """Return the numbers of one scheme on the tiny model."""
    (found,) = measure_quality(model, prompt, [scheme], options(**more)).to_json()["cases"]
    return found


@given(st.floats(-500, 500, width=32), st.booleans())
def test_outward_rounding_is_the_next_number_of_e4m3(value, up):
    """The smallest number at or above, the largest at or below; beyond 448 it saturates."""
    found = float(outward_e4m3(torch.tensor([value], dtype=torch.float64), up=up))
    beyond = [float(e) for e in E4M3 if (e >= value if up else e <= value)]
    expected = (min(beyond) if up else max(beyond)) if beyond else np.copysign(448.0, value)
    assert expected == found


@given(st.integers(0, 1000))
def test_bounds_in_eight_bits_still_hold(seed):
    """No token of a block scores above the rounded bound, and the exact bound lies below it."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, 24, 8, generator=generator) * 4
    query = torch.randn(4, 1, 8, generator=generator)
    exact = bound_scores(query, *summary_of(KeyIndex(), keys)(keys, 8))
    rounded = bound_scores(query, *summary_of(KeyIndex("extremes-fp8"), keys)(keys, 8))
    assert bool((rounded >= exact).all())
    assert not torch.equal(rounded, exact)


@given(st.integers(0, 1000), st.integers(1, 8))
def test_directions_keep_the_longest_parts(seed, kept):
    """All directions give the scores themselves; some lose no more than other axes would."""
    keys = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(seed))
    low, high = summary_of(KeyIndex(DIRECTIONS, share=kept / 8), keys)(keys, 1)
    assert torch.equal(low, high)
    lost = (keys - low).square().sum(dim=(1, 2))
    plain = keys.double().square().sum(dim=1).sort(dim=-1).values[:, : 8 - kept].sum(dim=-1)
    assert bool((lost <= plain + 1e-6).all())
    if kept == 8:
        assert torch.allclose(low, keys.double(), atol=1e-6)


def test_outliers_are_the_blocks_that_their_mean_describes_worst():
    """A block whose keys point apart is found; blocks of equal keys are not."""
    keys = torch.ones(1, 32, 4)
    keys[0, 16:24:2] = -1.0 + 0.1 * torch.rand(4, 4)
    assert [[False, False, True, False]] == outlier_blocks(keys, 8, 1).tolist()


@pytest.mark.parametrize(
    ("name", "kind", "tokens"),
    [
        ("infinigen", DIRECTIONS, 1),
        ("freekv", EXTREMES, 32),
        ("shadowkv", MEANS, 8),
        ("hisparse", EXTREMES, 1),
        ("oasis", EXTREMES, 16),
    ],
)
def test_shipped_schemes_are_decoded_in_their_own_units(name, kind, tokens):
    """Units and index are those that the presets describe; always resident tokens stay as many."""
    scheme = load_scheme(name)
    own = own_units(scheme)
    assert (kind, tokens) == (index_of(own).kind, own.block_tokens)
    assert scheme.sink_blocks * scheme.block_tokens == own.sink_blocks * tokens
    assert scheme.budget_tokens == own.budget_tokens
    assert (own.recent_blocks - 1) * tokens <= (scheme.recent_blocks - 1) * 16 + tokens


def test_an_unknown_index_is_refused():
    """A third of the keys is no kind of index that is known."""
    scheme = with_options(load_scheme("oasis"), key_index_share=0.33)
    with pytest.raises(UsageError, match="key_index_share"):
        vary_scheme(scheme, [], [], [])


def test_correcting_every_head_is_fetching_on_demand(model, prompt):
    """All heads take the step's own choice: the previous query's does not matter."""
    previous = with_options(small("previous-token"), fetch_ratio=1.0)
    alone = case(model, prompt, previous)
    corrected = case(model, prompt, with_options(previous, correction_share=1.0))
    demand = case(model, prompt, small("on-demand"))
    assert demand["kl_by_step"] == corrected["kl_by_step"] != alone["kl_by_step"]
    assert 1.0 == corrected["overlap"]["mean"] > alone["overlap"]["mean"]
    some = case(model, prompt, with_options(previous, correction_share=0.3))
    assert alone["overlap"]["mean"] < some["overlap"]["mean"] < 1.0


@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_the_share_of_corrected_heads_is_kept(seed, share):
    """Over many steps as many heads are corrected as the scheme says, those that moved most."""
    generator = torch.Generator().manual_seed(seed)
    drift = QueryDrift(share, heads=2)
    found = [drift.corrected(0, torch.randn(4, 3, 6, generator=generator)) for _ in range(40)]
    assert not found[0].any()
    assert np.stack(found[1:]).mean() == pytest.approx(share, abs=0.15)


def test_rehearsed_queries_are_those_of_the_layer_before(model):
    """A layer gives the query that its own code makes of the input of the layer before it."""
    inputs, queries = {}, {}
    ids = torch.tensor([3, 4, 5])
    layers = model.module.model.layers
    with torch.inference_mode(), rehearsed(model, queries):
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, args, place=place: inputs.update({place: args[0]})
            )
            for place, layer in enumerate(layers)
        ]
        store = KeyValueStore(model.layers, 3)
        states = run_pass(model.module, ids, torch.arange(3), CausalPass(store, keep_queries=False))
    for hook in hooks:
        hook.remove()
    assert sorted(queries) == [1, 2, 3, 4]
    with torch.inference_mode():
        layer = layers[2]
        made = layer.self_attn.q_proj(layer.input_layernorm(inputs[1])).view(3, 4, 16)
        rotation = Rotation.of(model, 2, torch.arange(3))
        expected = rotation.forward(made.transpose(0, 1))
        plain = KeyValueStore(model.layers, 3)
        again = run_pass(model.module, ids, torch.arange(3), CausalPass(plain, keep_queries=False))
    assert torch.allclose(expected, queries[2], atol=1e-5)
    assert torch.equal(again, states)


def infinigen(budget: int):
    """Return InfiniGen at the size of the tiny models."""
    return with_options(own_units(load_scheme("infinigen")), budget_tokens=budget)


def test_infinigen_reads_what_was_rehearsed(model, prompt):
    """All tokens chosen is full attention; fewer lose something, and all of them come anew."""
    whole = case(model, prompt, infinigen(200), block_tokens=1)
    assert whole["kl"]["mean"] < 1e-9
    few = case(model, prompt, infinigen(24), block_tokens=1)
    assert few["kl"]["mean"] > 1e-6
    assert 1.0 == few["needed"]["mean"] == few["admitted"]["mean"]
    assert few["overlap"]["mean"] < 1.0
    assert 1.0 == pytest.approx(few["layers"][0]["overlap"])  # nothing lies before this layer
    blocks = with_options(infinigen(24), block_tokens=8, unit="block")
    with pytest.raises(UsageError, match="score tokens"):
        vary_scheme(blocks, [], [], [])


def shadowkv(rank: int, budget: int = 24):
    """Return ShadowKV at the size of the tiny models."""
    parts = {"key_rank": rank, "sink_blocks": 2, "recent_blocks": 2, "budget_tokens": budget}
    return with_options(own_units(load_scheme("shadowkv")), **parts)


def test_shadowkv_loses_what_the_rank_loses(model, prompt):
    """Full rank and all chunks are full attention; a low rank is not; values alone are moved."""
    assert case(model, prompt, shadowkv(32, 512))["kl"]["mean"] < 1e-6
    assert case(model, prompt, shadowkv(2, 512))["kl"]["mean"] > 1e-5
    some = case(model, prompt, shadowkv(32))
    assert 0.0 < some["kl"]["mean"]
    moved = some["admitted"]["mean"] * some["chosen_blocks"] * 5 * 2
    assert some["bytes_per_step"] == pytest.approx(moved * 8 * 16 * 2)


def test_keys_are_turned_back_to_position_zero(model, tiny_model):
    """Rotation and its reverse are the same keys; a model that hides its angles is refused."""
    with torch.inference_mode():
        check_rotation(model, tuple(range(5)))
    rotation = Rotation.of(model, 0, torch.arange(7))
    keys = torch.randn(2, 7, 16)
    assert torch.allclose(keys, rotation.back(rotation.forward(keys)), atol=1e-5)
    for kind in ("gpt2", "gpt_neox"):
        with torch.inference_mode(), pytest.raises(InputError, match="turned back"):
            check_rotation(tiny_model(kind), (0,))


def test_belady_attends_the_true_set_and_moves_less(model, prompt):
    """Eviction that knows the future changes traffic alone, and no other order moves less."""
    belady, recent = small("belady"), small("hisparse")
    belady = with_options(belady, pool_factor=1.25)
    recent = with_options(recent, pool_factor=1.25)
    best, usual = case(model, prompt, belady), case(model, prompt, recent)
    assert best["kl_by_step"] == usual["kl_by_step"]
    assert 0.0 < best["admitted"]["mean"] <= usual["admitted"]["mean"]
    with pytest.raises(UsageError, match="future"):
        vary_scheme(with_options(belady, fetch_ratio=0.1), [], [], [])


def test_caps_by_step_stand_for_an_adaptive_cap(model, prompt):
    """The caps are those of the steps, in turn; without them an adaptive scheme is refused."""
    adaptive = small("oasis-adaptive")
    found = case(model, prompt, adaptive, step_caps=(0, 2))
    assert (1.0, 0.25) == (found["cap_blocks"], found["fetch_ratio"])
    assert found["admitted"]["mean"] <= 1.0 / 4
    assert 0.0 == case(model, prompt, adaptive, step_caps=(0,))["admitted"]["mean"]
    plan = plan_of(adaptive, options(step_caps=(1,)))
    assert (1,) == plan.caps
    assert not plan.plain
    with pytest.raises(UsageError, match="--step-caps"):
        case(model, prompt, adaptive)
    with pytest.raises(UsageError, match="fixed"):
        case(model, prompt, small("oasis"), step_caps=(1,))


def test_shares_of_blocks_are_those_that_attention_read(model, prompt):
    """Every scheme that learns from attention is told shares that sum to one."""
    from oasis_sim.quality.pools import RowPools

    seen = []
    observe = RowPools.observe

    def watched(self, shares):
        seen.append(shares.sum(axis=-1))
        observe(self, shares)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowPools, "observe", watched)
        found = case(model, prompt, small("oasis-adaptive"), step_caps=(1, 2))
    assert 0.0 < found["admitted"]["mean"] <= 1.5 / 4
    assert 5 * STEPS == len(seen)
    np.testing.assert_allclose(np.stack(seen), 1.0, rtol=1e-5)


def test_an_index_in_eight_bits_is_compared_with_the_exact_one(model, prompt):
    """Nearly all blocks are chosen alike; without it nothing is compared."""
    exact, rounded = (case(model, prompt, small("oasis"), index_fp8=on) for on in (False, True))
    assert "index_agreement" not in exact
    assert 0.5 < rounded["index_agreement"]["mean"] < 1.0
    assert exact["kl_by_step"] != rounded["kl_by_step"]
    assert STEPS - 1 == len(rounded["kl_by_step"])
    with pytest.raises(UsageError, match="no extreme keys"):
        case(model, prompt, shadowkv(8), index_fp8=True)
