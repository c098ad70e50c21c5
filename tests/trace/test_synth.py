"""Synthetic traces: determinism, schema, knobs, and the statistics of the shipped one."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.trace import AttentionTrace, load_trace, save_trace
from oasis_sim.trace.build import flatten
from oasis_sim.trace.synth import DRAFTER, synthesize
from oasis_sim.trace.synth_parameters import SynthParameters
from oasis_sim.trace.synth_presets import AIME_SEED, PRESETS, preset
from oasis_sim.trace.synth_random import ExactRandom

ROOT = Path(__file__).resolve().parents[2]
SMALL = SynthParameters(
    context_tokens=2048, steps=24, recorded_layers=4, recorded_heads=4, stored_blocks=64
)
TOP = 32


@pytest.fixture(scope="module")
def fitting() -> ModuleType:
    """Return the script that fits and measures the shipped trace."""
    path = ROOT / "benchmarks" / "fit_synthetic_trace.py"
    spec = importlib.util.spec_from_file_location("fit_synthetic_trace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shipped() -> AttentionTrace:
    """Return the shipped trace."""
    return load_trace(ROOT / "traces" / "aime.jsonl")


def agreement(trace: AttentionTrace, order: Any) -> float:
    """Return the share of the next step's true top blocks that an order holds."""
    pairs = zip(
        order[:-1].reshape(-1, trace.stored_blocks),
        trace.use_order[1:].reshape(-1, trace.stored_blocks),
        strict=True,
    )
    shares = [len(np.intersect1d(old[:TOP], new[:TOP])) / TOP for old, new in pairs]
    return float(np.mean(shares))


def previous(trace: AttentionTrace) -> float:
    """Return how well the previous token predicts the next set."""
    return agreement(trace, trace.use_order)


def drafted(trace: AttentionTrace) -> float:
    """Return how well the draft predicts the next set."""
    return agreement(trace, trace.pred_order[DRAFTER])


# Shipped trace


def test_shipped_trace_has_the_published_statistics(
    fitting: ModuleType, shipped: AttentionTrace
) -> None:
    """Misses at all six caps, draft and previous-token accuracy are within the tolerance."""
    found = fitting.measure(shipped)
    wrong = {
        target.name: (target.published, found[target.name])
        for target in fitting.targets(shipped.layer_ids)
        if abs(found[target.name] - target.published) > target.tolerance
    }
    assert {} == wrong


def test_shipped_draft_follows_figure_6_in_every_layer(
    fitting: ModuleType, shipped: AttentionTrace
) -> None:
    """The draft's agreement is within half a point of Figure 6 in each recorded layer."""
    expected = [fitting.FIGURE_6_AGREEMENT_PCT[layer] for layer in shipped.layer_ids]
    found = fitting.by_layer(shipped)["draft_top128_agreement_pct"]
    np.testing.assert_allclose(expected, found, atol=0.5)


def test_shipped_layers_lie_near_the_range_of_figure_4(
    fitting: ModuleType, shipped: AttentionTrace
) -> None:
    """Top-20 accuracy by layer stays within a point of the published ranges."""
    found = fitting.by_layer(shipped)
    for key, low, high in (
        ("draft_top20_accuracy_pct", 94.5, 97.2),
        ("previous_token_top20_accuracy_pct", 77.8, 88.3),
    ):
        assert low - 1.0 <= min(found[key]) <= max(found[key]) <= high + 1.0


def test_shipped_trace_says_that_it_is_synthetic(shipped: AttentionTrace) -> None:
    """Origin, name and text say so; the calibration names its source."""
    assert shipped.is_synthetic
    assert "synthetic" in shipped.name
    assert {"name": "none (synthetic)", "licence": "CC0-1.0"} == shipped.meta["text"]
    assert "2608.08097" in shipped.meta["synthetic"]["calibrated_to"]["source"]
    assert () == shipped.warnings


def test_shipped_trace_comes_from_its_header(shipped: AttentionTrace) -> None:
    """Parameters and seed of the header generate exactly the shipped arrays and header."""
    recipe = shipped.meta["synthetic"]
    assert preset("aime") == SynthParameters.from_dict(recipe["parameters"])
    again = synthesize(
        SynthParameters.from_dict(recipe["parameters"]), AIME_SEED, recipe["calibrated_to"]
    )
    assert shipped.meta == json.loads(json.dumps(again.meta))
    for key, array in flatten(shipped).items():
        np.testing.assert_array_equal(array, flatten(again)[key], err_msg=key)


def test_shipped_calibration_file_is_that_of_the_trace(
    fitting: ModuleType, shipped: AttentionTrace
) -> None:
    """The file beside the trace repeats the header's statistics and the numbers by layer."""
    record = json.loads((ROOT / "traces" / "aime.calibration.json").read_text())
    assert shipped.meta["synthetic"]["calibrated_to"]["statistics"] == record["statistics"]
    assert fitting.by_layer(shipped) == record["by_layer"]
    assert round(fitting.captured_mass(shipped), 4) == record["captured_mass_top128"]


def test_shipped_file_is_small() -> None:
    """The compressed trace stays below 6 MB and can serve budgets of twice 128 blocks."""
    assert (ROOT / "traces" / "aime.jsonl.zst").stat().st_size < 6_000_000


# Generator


def test_random_numbers_never_change() -> None:
    """The first numbers of a stream are those of every platform and NumPy version."""
    random = ExactRandom(7, "test")
    numbers = np.concatenate([random.uniform(3), random.normal(3), random.permutation(5)])
    digest = hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()
    assert "2d9e27e0519f8d87" == digest[:16]


def test_random_numbers_have_their_moments() -> None:
    """Uniform and normal numbers have the right mean and variance."""
    random = ExactRandom(1, "moments")
    uniform, normal = random.uniform(200_000), random.normal(200_000)
    np.testing.assert_allclose(
        [0.5, 1 / 12, 0.0, 1.0],
        [uniform.mean(), uniform.var(), normal.mean(), normal.var()],
        atol=0.01,
    )


def test_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    """Two runs write the same bytes; another seed writes others."""
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        save_trace(synthesize(SMALL, seed), tmp_path / f"{name}.jsonl")
    files = {name: (tmp_path / f"{name}.jsonl").read_bytes() for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]


def test_longer_trace_has_the_asked_shape() -> None:
    """Context, steps, layers and heads are free, from the parameters of a header."""
    header = synthesize(SMALL, 1).meta["synthetic"]["parameters"]
    longer = SynthParameters.from_dict(header | {"steps": 40, "context_tokens": 4096})
    trace = synthesize(longer, 1)
    assert (40, 4, 4, 64) == trace.use_order.shape
    assert [4096, 4135] == trace.position[[0, -1]].tolist()


@given(
    context=st.integers(16, 700),
    steps=st.integers(2, 20),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 8]),
    block=st.sampled_from([1, 16, 32]),
    stored=st.integers(1, 80),
    seed=st.integers(0, 2**40),
)
def test_every_shape_follows_the_schema(
    context: int, steps: int, layers: int, heads: int, block: int, stored: int, seed: int
) -> None:
    """Saving checks the schema: any shape passes, and comes back the same."""
    parameters = SynthParameters(
        context_tokens=max(context, block),
        steps=steps,
        recorded_layers=layers,
        recorded_heads=heads,
        block_tokens=block,
        stored_blocks=stored,
    )
    trace = synthesize(parameters, seed)
    checked = load_trace_of(trace)
    assert () == checked.warnings
    flags = trace.draft_token[DRAFTER] == trace.token[1:]
    np.testing.assert_array_equal(trace.accepted[DRAFTER], flags.astype(np.uint8))


def load_trace_of(trace: AttentionTrace) -> AttentionTrace:
    """Return a trace as the schema's check builds it."""
    from oasis_sim.trace.build import build_trace

    return build_trace(trace.meta, flatten(trace), "synthetic")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_usable(name: str) -> None:
    """Every preset generates a trace that names itself synthetic."""
    small = preset(name).replace(context_tokens=1024, steps=3, recorded_layers=1, stored_blocks=32)
    assert "synthetic" in synthesize(small, 0).name


def test_unknown_preset_is_refused() -> None:
    """An unknown preset names the known ones."""
    with pytest.raises(InputError, match="aime"):
        preset("aimee")


# Knobs


@pytest.mark.parametrize(
    ("knob", "low", "high"),
    [
        ("volatility", 0.2, 2.0),
        ("flicker", 0.3, 3.0),
        ("volatile_refresh_low", 0.05, 0.6),
        ("static_exchanges", 0.0, 40.0),
    ],
)
def test_movement_makes_the_previous_token_worse(knob: str, low: float, high: float) -> None:
    """More movement leaves less of the previous token's set."""
    calm = synthesize(SMALL.replace(**{knob: low}), 3)
    moved = synthesize(SMALL.replace(**{knob: high}), 3)
    assert previous(moved) < previous(calm) - 0.01


@pytest.mark.parametrize(
    ("knob", "low", "high"),
    [("draft_noise", 0.0, 1.0), ("draft_noise_share", 0.05, 1.0), ("rejected_noise_factor", 1, 20)],
)
def test_draft_noise_makes_the_draft_worse(knob: str, low: float, high: float) -> None:
    """More noise in the draft's view leaves less agreement, and the truth as it is."""
    good = synthesize(SMALL.replace(**{knob: low}), 3)
    bad = synthesize(SMALL.replace(**{knob: high}), 3)
    assert drafted(bad) < drafted(good) - 0.01
    np.testing.assert_array_equal(good.use_order, bad.use_order)


def test_draft_without_noise_is_exact() -> None:
    """A noiseless draft sees the order of the next step."""
    trace = synthesize(SMALL.replace(draft_noise=0.0), 2)
    np.testing.assert_array_equal(trace.use_order[1:], trace.pred_order[DRAFTER][:-1])


def test_more_static_heads_move_less() -> None:
    """A larger share of static heads leaves more of the previous set."""
    few, many = (synthesize(SMALL.replace(static_share=x), 4) for x in (0.1, 0.9))
    assert previous(many) > previous(few) + 0.03


def test_blocks_appear_as_the_context_grows() -> None:
    """A block completed on the way enters the orders once it is complete, never before."""
    trace = synthesize(SMALL.replace(recency_boost=20.0, context_tokens=2047), 1)
    newest = 2047 // 16
    listed = (trace.use_order == newest).any(axis=-1).all(axis=(1, 2))
    np.testing.assert_array_equal(trace.position // 16 > newest, listed)


def test_steeper_profile_captures_more_mass(fitting: ModuleType) -> None:
    """A steeper popularity profile puts more mass into the best 128 blocks."""
    wide = dataclasses.replace(SMALL, context_tokens=8192, stored_blocks=128)
    flat, steep = (synthesize(wide.replace(profile_exponent=x), 1) for x in (0.8, 2.0))
    assert fitting.captured_mass(steep) > fitting.captured_mass(flat) + 0.05


# Bad parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 1),
        ("steps", "many"),
        ("recorded_layers", 37),
        ("recorded_heads", 9),
        ("query_heads", 30),
        ("static_share", 1.5),
        ("volatility", float("nan")),
        ("flicker", -1.0),
        ("profile_knee", 0.0),
        ("volatile_refresh_low", 0.99),
        ("draft_noise_by_depth", []),
        ("draft_noise_by_depth", 3.0),
        ("context_tokens", 10**9),
        ("name", 5),
        ("no_such_knob", 1),
    ],
)
def test_bad_parameters_are_refused_by_name(field: str, value: object) -> None:
    """Every bad value names its parameter."""
    values = SynthParameters(volatile_refresh_high=0.9).to_dict() | {field: value}
    with pytest.raises(InputError, match=field):
        SynthParameters.from_dict(values)


def test_negative_seed_is_refused() -> None:
    """Seeds start at 0."""
    with pytest.raises(InputError, match="seed"):
        synthesize(SMALL, -1)


def test_command_starts_from_a_preset(tmp_path: Path) -> None:
    """``trace synth --preset`` writes the preset with the changes that were asked for."""
    from click.testing import CliRunner

    from oasis_sim.cli.trace import trace as command

    words = ["--preset", "steady", "--set", "steps=3", "--set", "recorded_layers=1", "--seed", "2"]
    result = CliRunner().invoke(command, ["synth", str(tmp_path / "t.npz"), *words])
    assert 0 == result.exit_code, result.output
    expected = preset("steady").replace(steps=3, recorded_layers=1)
    recipe = load_trace(tmp_path / "t.npz").meta["synthetic"]
    assert (2, expected) == (recipe["seed"], SynthParameters.from_dict(recipe["parameters"]))


def test_heads_share_what_the_correlation_says() -> None:
    """More in common makes the union over heads smaller; what one head does stays as it was."""
    alone, alike = (synthesize(SMALL.replace(head_correlation=x), 3) for x in (0.0, 0.98))
    union = [
        np.mean(
            [len(np.unique(step[layer, :, :TOP])) for step in t.use_order for layer in range(4)]
        )
        for t in (alone, alike)
    ]
    assert union[1] < 0.75 * union[0]
    assert abs(previous(alone) - previous(alike)) < 0.03
