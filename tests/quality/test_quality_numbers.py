"""Numbers of a study: divergence, intervals, texts, variations of a scheme."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from oasis_sim.errors import UsageError
from oasis_sim.quality import applicable, own_units, vary_scheme
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.quality.measure import compare_texts, output_quality
from oasis_sim.quality.present import headline
from oasis_sim.quality.result import QualityResult
from oasis_sim.scheme import load_scheme, scheme_names

values = arrays.arrays(
    np.float64, st.integers(2, 40), elements=st.floats(-100, 100, allow_subnormal=False)
)


@given(values, st.integers(0, 5))
def test_interval_lies_within_the_values(series, seed):
    """The interval lies around the mean of resamples, within the range of the values."""
    found = BlockBootstrap(len(series), resamples=200, seed=seed).estimate(series)
    assert found.mean == pytest.approx(series.mean())
    assert series.min() - 1e-9 <= found.low <= found.high <= series.max() + 1e-9


def test_interval_of_neighbours_is_wider_than_that_of_independent_steps():
    """Blocks of neighbours see that neighbours are alike: 27 steps in 3 runs of 9."""
    alike = np.repeat([0.0, 0.0, 1.0], 9)
    mixed = np.tile([0.0, 0.0, 1.0], 9)
    boot = BlockBootstrap(27, resamples=4000, seed=1)
    assert 3 == boot.block_steps
    wide, narrow = boot.estimate(alike), boot.estimate(mixed)
    assert wide.high - wide.low > 0.3
    assert narrow.high - narrow.low < 1e-9


def test_covers_a_known_mean():
    """Of 200 series of independent draws, about 95 % of intervals hold the true mean."""
    random = np.random.default_rng(5)
    boot = BlockBootstrap(60, resamples=500, seed=0)
    inside = 0
    for _ in range(200):
        found = boot.estimate(random.normal(3.0, 1.0, 60))
        inside += found.low <= 3.0 <= found.high
    assert 0.87 <= inside / 200 <= 0.99


def test_divergence_of_known_distributions():
    """KL, agreement and NLL difference of two coins, worked out by hand."""
    full, sparse = np.log([0.75, 0.25]), np.log([0.5, 0.5])
    kl, agree, nll = output_quality(full, sparse[None], 1)[0]
    assert kl == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert 1.0 == agree
    assert nll == pytest.approx(np.log(0.25) - np.log(0.5))
    assert 0.0 == output_quality(full, np.log([[0.4, 0.6]]), 0)[0, 1]


@given(
    arrays.arrays(np.float64, 8, elements=st.floats(-20, 20)),
    arrays.arrays(np.float64, 8, elements=st.floats(-20, 20)),
)
def test_divergence_is_never_negative(first, second):
    """KL is 0 for equal distributions and 0 or more for any two."""
    one, other = (each - np.log(np.exp(each).sum()) for each in (first, second))
    different, equal = output_quality(one, np.stack([other, one]), 0)
    assert different[0] >= 0.0
    assert equal[0] == pytest.approx(0.0, abs=1e-12)


def test_texts_are_compared_token_by_token():
    """The first difference counts, and what is equal after it as well."""
    found = compare_texts([1, 2, 3, 4], [1, 2, 9, 4], 0.5)
    assert (4, 2, 0.75, 0.5) == (
        found.tokens,
        found.equal_before_first_difference,
        found.equal_share,
        found.nll_difference,
    )
    assert 2 == compare_texts([1, 2], [1, 2], 0.0).equal_before_first_difference


def test_schemes_vary_by_budget_predictor_and_ratio():
    """Ratio 1 means all; a predictor brings the parts that belong to it."""
    base = load_scheme("oasis")
    found = vary_scheme(base, [512, 1024], [0.05, 1.0], ["draft", "current"])
    assert 8 == len(found)
    assert [1, 32, 1, 32] == [scheme.admission_cap for scheme in found[:4]]
    assert [False, True] == [found[0].on_demand, found[2].on_demand]
    assert (base,) == vary_scheme(base, [], [], [])
    with pytest.raises(UsageError, match="reference"):
        vary_scheme(load_scheme("dense"), [512], [], [])


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("evict", "belady", "future"),
        ("host_bytes_per_element", 4, "precision"),
    ],
)
def test_what_is_not_decoded_is_refused(part, value, reason):
    """A part of a scheme that would change the text, but is not decoded here, is named."""
    scheme = dataclasses.replace(load_scheme("oasis"), **{part: value})
    with pytest.raises(UsageError, match=reason):
        vary_scheme(scheme, [], [], [])


@pytest.mark.parametrize(
    ("drafter", "said"), [("skip", "; drafter skip;"), (None, "; no drafter;")]
)
def test_the_headline_says_who_drafts(drafter: str | None, said: str) -> None:
    """A scheme that selects without a draft has no drafter."""
    facts = {
        "model": {"name": "m"},
        "text": {"name": "t"},
        "trajectory": {"source": "sample"},
        "prompt_tokens": 9,
        "steps": 4,
        "schemes": [{"name": "oasis", "block_tokens": 16}],
        "drafter": drafter,
        "full_attention_nll": 1.0,
    }
    assert said in headline(QualityResult(facts, ()))


@pytest.mark.parametrize("name", sorted({*scheme_names()} - {"dense", "oasis-adaptive"}))
def test_what_applies_to_a_scheme_varies_it(name):
    """Beside others no scheme refuses what is left to it."""
    scheme = own_units(load_scheme(name))
    predictors = ["draft", "previous", "current", "oracle"]
    ratios, own = applicable(scheme, [0.5, 1.0], predictors)
    assert max(1, len(ratios)) * max(1, len(own)) == len(vary_scheme(scheme, [], ratios, own))
