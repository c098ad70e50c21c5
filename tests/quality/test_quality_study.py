"""A study as a whole: kept parts, equal plans, drafters, 16 bits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="decoding needs the extra 'record'")

from oasis_sim.errors import InputError, UsageError
from oasis_sim.quality import QualityOptions, measure_quality, vary_scheme
from oasis_sim.record import RecordOptions
from oasis_sim.scheme import load_scheme, with_options

STEPS = 6


def options(
    drafter: str = "skip2-2", free_run: bool = False, block_tokens: int = 8, **more
) -> QualityOptions:
    """Return how the tiny models are decoded."""
    decode = RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=block_tokens,
        draft_budget_tokens=8,
        drafters=(drafter,),
        max_perplexity=1e9,
    )
    return QualityOptions(decode, free_run=free_run, resamples=50, **more)


def schemes(predictors=("draft",), ratios=(0.0, 0.01, 0.5)):
    """Return small schemes; ratios 0 and 0.01 fetch nothing alike."""
    base = with_options(load_scheme("oasis"), block_tokens=8, unit="block", budget_tokens=24)
    return vary_scheme(base, [24, 32], ratios, predictors)


@pytest.fixture(scope="module")
def model(tiny_model):
    """Return the tiny Llama model."""
    return tiny_model("llama")


@pytest.fixture
def prompt(model, tiny_prompt):
    """Return a prompt and the text after it."""
    return tiny_prompt(model, follow=STEPS + 1)


@pytest.mark.parametrize(
    "stage",
    ["decode", "full attention", "oasis, cases 5 to 6 of 6", "quest, cases 1 to 1 of 1"],
)
def test_goes_on_after_an_interruption(model, prompt, tmp_path, monkeypatch, stage):
    """Whenever it is interrupted, the study ends with the same numbers, and nothing is left."""
    monkeypatch.setattr("oasis_sim.quality.study.SIDE_BY_SIDE", 4)
    found = schemes(("draft", "previous"), (0.0, 0.5))[:6]
    found = (*found, with_options(load_scheme("quest"), budget_tokens=32))
    whole = measure_quality(model, prompt, found, options()).to_json()
    place = tmp_path / "kept"

    def interrupt(name: str, done: int, total: int) -> None:
        if name == stage and done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_quality(model, prompt, found, options(), interrupt, checkpoint=place)
    assert place.exists()
    with pytest.raises(InputError, match="another"):
        measure_quality(model, prompt, found[:5], options(), checkpoint=place)
    seen: list[str] = []
    again = measure_quality(
        model, prompt, found, options(), lambda name, *_: seen.append(name), checkpoint=place
    )
    assert whole == again.to_json()
    assert not place.exists()
    if "cases" in stage:
        assert not {"full attention", "oasis, cases 1 to 4 of 6"} & set(seen)
    if stage.startswith("quest"):
        assert {stage} == {name for name in seen if "cases" in name}


def test_equal_plans_are_decoded_once(model, prompt):
    """Ratios that fetch the same number of blocks are one row, and say the same."""
    seen: set[str] = set()
    result = measure_quality(
        model, prompt, schemes(), options(), lambda name, *_: seen.add(name)
    ).to_json()
    assert "oasis, cases 1 to 4 of 4" in seen
    first, second = result["cases"][:2]
    assert (0.0, 0.01) == (first["fetch_ratio"], second["fetch_ratio"])
    assert first["kl_by_step"] == second["kl_by_step"]
    assert STEPS - 1 == len(first["kl_by_step"])


def test_the_oracle_drafts_what_comes(model, prompt):
    """Every draft of the oracle is accepted, in a text of its own too."""
    result = measure_quality(model, prompt, schemes(), options("oracle", free_run=True)).to_json()
    assert "oracle" == result["drafter"]
    assert [1.0] * 6 == [case["draft_accepted"] for case in result["cases"]]
    assert STEPS == result["cases"][0]["free_run"]["tokens"]


def test_a_draft_model_reads_given_texts_only(model, prompt, model_folder):
    """Another model drafts over the trajectory; a text of the rows' own is refused."""
    name = f"model:{model_folder('llama')}"
    with pytest.raises(UsageError, match="no-free-run"):
        measure_quality(model, prompt, schemes(), options(name, free_run=True))
    result = measure_quality(model, prompt, schemes(), options(name)).to_json()
    assert result["drafter"].startswith("model-")
    # The draft model is the model itself: its likeliest next tokens.
    assert result["cases"][0]["draft_accepted"] is not None


def test_sixteen_bits_change_little(model, prompt):
    """Rounded queries, keys and values are named, and move KL by less than they could by chance."""
    exact = measure_quality(model, prompt, schemes(ratios=(1.0,)), options()).to_json()
    rounded = measure_quality(
        model, prompt, schemes(ratios=(1.0,)), options(kv_16bit=True)
    ).to_json()
    assert ("float32", "bfloat16") == (exact["kv_dtype"], rounded["kv_dtype"])
    one, other = (result["cases"][0]["kl"]["mean"] for result in (exact, rounded))
    assert one != other
    assert other == pytest.approx(one, rel=0.5)


def small(name: str):
    """Return a shipped scheme at the size of the tiny models."""
    return with_options(load_scheme(name), block_tokens=8, unit="block", budget_tokens=32)


def test_eight_bits_on_the_host(model, prompt):
    """Half the bytes come, and a little less is kept of what they say."""
    found = {
        name: measure_quality(
            model, prompt, [with_options(small(name), fetch_ratio=1.0)], options()
        ).to_json()["cases"][0]
        for name in ("oasis", "oasis-fp8")
    }
    assert found["oasis"]["kl"]["mean"] != found["oasis-fp8"]["kl"]["mean"]
    whole = with_options(small("oasis-fp8"), budget_tokens=512, fetch_ratio=1.0)
    (case,) = measure_quality(model, prompt, [whole], options()).to_json()["cases"]
    assert 0.0 < case["kl"]["mean"] < 0.2  # nothing is missing but bits
    assert case["attention_mass"]["mean"] == pytest.approx(1.0, abs=1e-6)
    moved = {
        name: case["bytes_per_step"] / case["admitted"]["mean"] for name, case in found.items()
    }
    assert moved["oasis"] == pytest.approx(2 * moved["oasis-fp8"])


def test_selection_in_hbm_moves_nothing(model, prompt):
    """Quest decodes like fetching on demand without a cap; no byte crosses a link."""
    base = with_options(load_scheme("quest"), block_tokens=8, budget_tokens=32)
    schemes = [base, with_options(small("on-demand"), fetch_ratio=1.0)]
    quest, demand = measure_quality(model, prompt, schemes, options()).to_json()["cases"]
    assert quest["kl_by_step"] == demand["kl_by_step"]
    assert 0.0 == quest["bytes_per_step"] < demand["bytes_per_step"]
