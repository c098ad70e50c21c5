"""An EAGLE-3 head with random weights against a plain computation, and heads that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.record import RecordOptions, record

torch = pytest.importorskip("torch", reason="recording needs the extra 'record'")
reference = pytest.importorskip("tests.record.reference", reason="needs the extra 'record'")

from oasis_sim.record.eagle_config import (  # noqa: E402
    build_rotary,
    find_activation,
    load_facts,
    read_shape,
)
from oasis_sim.record.eagle_files import load_eagle_head  # noqa: E402

STEPS = 20
PROMPT = 96


DRAFT_VOCAB = 24
EAGLE_CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "num_hidden_layers": 1,
    "draft_vocab_size": DRAFT_VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
}


def eagle_weights(target: int = 64, vocab: int = 50) -> dict:
    """Return the weights of a random head, named as the published heads name them."""
    random = torch.Generator().manual_seed(5)

    def draw(*shape: int):
        return torch.randn(*shape, generator=random) / shape[-1] ** 0.5

    hidden = EAGLE_CONFIG["hidden_size"]
    size = {"q": 80, "k": 40, "v": 40}
    chosen = torch.randperm(vocab, generator=random)[:DRAFT_VOCAB].sort().values
    return {
        "fc.weight": draw(hidden, 3 * target),
        "embed_tokens.weight": draw(vocab, hidden) * 5,
        "midlayer.input_layernorm.weight": 1 + draw(hidden),
        "midlayer.hidden_norm.weight": 1 + draw(hidden),
        "midlayer.post_attention_layernorm.weight": 1 + draw(hidden),
        **{f"midlayer.self_attn.{n}_proj.weight": draw(size[n], 2 * hidden) * 3 for n in size},
        "midlayer.self_attn.o_proj.weight": draw(hidden, 80),
        "midlayer.mlp.gate_proj.weight": draw(80, hidden),
        "midlayer.mlp.up_proj.weight": draw(80, hidden),
        "midlayer.mlp.down_proj.weight": draw(hidden, 80),
        "norm.weight": 1 + draw(hidden),
        "lm_head.weight": draw(DRAFT_VOCAB, hidden),
        "d2t": chosen - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True),
    }


def write_head(folder: Path, weights: dict, **config) -> Path:
    """Write a head's folder."""
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**EAGLE_CONFIG, **config}))
    save_file(weights, folder / "model.safetensors")
    return folder


def plain_eagle_drafts(weights: dict, taps: np.ndarray, tokens: list[int], *, pre_norm=False):
    """Return the head's draft after each pair (token i + 1, states at i), by plain loops."""
    arrays = {name: value.double().numpy() for name, value in weights.items()}

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        scale = 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EAGLE_CONFIG["rms_norm_eps"])
        return x * scale * arrays[f"{name}.weight"]

    def project(name: str, x: np.ndarray) -> np.ndarray:
        return x @ arrays[f"{name}.weight"].T

    def rotate(x: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None, None] * 5000.0 ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        turned = (
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        )
        return np.concatenate(turned, axis=-1)

    joined = project("fc", taps)
    embedded = norm("midlayer.input_layernorm", arrays["embed_tokens.weight"][tokens[1:]])
    normed = norm("midlayer.hidden_norm", joined)
    pair = np.concatenate([embedded, normed], axis=-1)
    q, k, v = (
        project(f"midlayer.self_attn.{name}_proj", pair).reshape(len(pair), -1, 20)
        for name in "qkv"
    )
    q, k = rotate(q), rotate(k)
    out = np.zeros_like(q)
    for row in range(len(pair)):
        for head in range(4):
            scores = k[: row + 1, head // 2] @ q[row, head] / 20**0.5
            shares = np.exp(scores - scores.max())
            out[row, head] = shares / shares.sum() @ v[: row + 1, head // 2]
    state = (normed if pre_norm else joined) + project(
        "midlayer.self_attn.o_proj", out.reshape(len(pair), -1)
    )
    inner = norm("midlayer.post_attention_layernorm", state)
    gate = project("midlayer.mlp.gate_proj", inner)
    gated = gate / (1 + np.exp(-gate)) * project("midlayer.mlp.up_proj", inner)
    state = norm("norm", state + project("midlayer.mlp.down_proj", gated))
    draft = project("lm_head", state).argmax(axis=-1)
    return draft + arrays["d2t"].astype(int)[draft] if "d2t" in arrays else draft


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({}, (1, 1, 1)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}}, (0, 2, 3)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, (0, 1, 3)),
        ({"norm_before_residual": True}, (1, 1, 1)),
    ],
)
def test_eagle_head_drafts_as_a_plain_computation(
    config, taps, model_folder, tiny_model, tiny_prompt, tmp_path, monkeypatch
):
    """Drafts come from the states before and the token itself, chunk by chunk, mapped by d2t."""
    from oasis_sim.record import eagle_drafter

    monkeypatch.setattr(eagle_drafter, "_CHUNK_TOKENS", 41)
    model, weights = tiny_model("llama"), eagle_weights()
    head = write_head(tmp_path / "head", weights, **config)
    prompt = tiny_prompt(model, follow=STEPS + 1)
    options = RecordOptions(
        steps=STEPS,
        trajectory="text",
        block_tokens=8,
        draft_budget_tokens=512,
        drafters=(f"eagle3:{head}",),
        max_perplexity=1e9,
    )
    trace = record(model, prompt, options, name="tiny").trace
    tokens = [*prompt.tokens, *trace.token[:-1].tolist()]
    eager = reference.EagerModel(model_folder("llama")).model
    with torch.no_grad():
        states = eager(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    joined = np.concatenate([states[tap + 1][0, :-1].double().numpy() for tap in taps], axis=-1)
    before = "norm_before_residual" in config
    expected = plain_eagle_drafts(weights, joined, tokens, pre_norm=before)
    assert expected[PROMPT - 1 :].tolist() == trace.draft_token["eagle3-head"].tolist()
    assert len(set(expected)) > 5
    assert 64 == len(trace.meta["drafters"]["eagle3-head"]["sha256"])


def test_eagle_heads_of_other_makers_are_read(tiny_model, tmp_path):
    """Names with ``model.`` and ``layers.0``, a nested configuration, and a .bin file."""
    model, weights = tiny_model("llama"), eagle_weights()
    first, sha256 = load_eagle_head(write_head(tmp_path / "a", weights), model)
    renamed = {
        name if name in {"d2t", "t2d"} else f"model.{name.replace('midlayer', 'layers.0')}": value
        for name, value in weights.items()
    }
    nested = tmp_path / "b"
    write_head(nested, renamed)
    parts = {"transformer_layer_config": EAGLE_CONFIG, "draft_vocab_size": DRAFT_VOCAB}
    (nested / "config.json").write_text(json.dumps(parts))
    second, other = load_eagle_head(nested, model)
    packed = tmp_path / "c"
    packed.mkdir()
    (packed / "config.json").write_text(json.dumps(EAGLE_CONFIG))
    torch.save(weights, packed / "pytorch_model.bin")
    third, _ = load_eagle_head(packed, model)
    generator = torch.Generator().manual_seed(1)
    taps, tokens = torch.randn(6, 192, generator=generator), torch.arange(6)
    found = [
        head.states(tokens, taps, torch.arange(6), head.new_store(6))
        for head in (first, second, third)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert sha256 != other


def test_head_takes_missing_parts_from_the_target(tiny_model, tmp_path):
    """Without embedding and output head, a head of the target's width uses the target's."""
    model = tiny_model("llama")
    weights = eagle_weights()
    wide = {
        name: torch.randn(
            *(64 if size == 48 else 128 if size == 96 else size for size in value.shape)
        )
        for name, value in weights.items()
        if name not in {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"}
    }
    config = {"hidden_size": 64, "draft_vocab_size": None}
    head, _ = load_eagle_head(write_head(tmp_path / "wide", wide, **config), model)
    states = head.states(torch.arange(3), torch.randn(3, 192), torch.arange(3), head.new_store(3))
    assert all(0 <= token < model.vocab for token in head.likeliest(states))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"fc.weight": None}, "lacks the weights fc.weight"),
        ({"fc.weight": (48, 100)}, r"weight fc.weight is \(48, 100\), not \(48, 192\)"),
        ({"lm_head.weight": (24, 40)}, "lm_head.weight"),
        ({"d2t": "far"}, "drafts tokens that the model lacks"),
    ],
)
def test_heads_that_do_not_fit_are_refused(change, problem, tiny_model, tmp_path):
    """Missing and misshapen weights, and foreign tokens, name what is wrong."""
    weights = eagle_weights()
    for name, value in change.items():
        if value is None:
            del weights[name]
        elif value == "far":
            weights[name] = weights[name] + 1000
        else:
            weights[name] = torch.zeros(*value)
    with pytest.raises(InputError, match=problem):
        load_eagle_head(write_head(tmp_path / "head", weights), tiny_model("llama"))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers: is not 1"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 9, 30]}, "joins the outputs"),
        ({"eagle_aux_hidden_state_layer_ids": "2, 3, 4"}, "joins the outputs"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"hidden_act": "bump"}, "unknown activation 'bump'"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rotary embedding"),
    ],
)
def test_head_configurations_are_checked(config, problem, tiny_model, tmp_path):
    """What the configuration says must be one layer on this target."""
    head = write_head(tmp_path / "head", eagle_weights(), **config)
    with pytest.raises(InputError, match=problem):
        load_eagle_head(head, tiny_model("llama"))


def test_folders_without_a_head_are_refused(tiny_model, tmp_path):
    """No configuration, no weights, a damaged file."""
    model = tiny_model("llama")
    with pytest.raises(InputError, match=r"no config.json"):
        load_eagle_head(tmp_path, model)
    (tmp_path / "config.json").write_text(json.dumps(EAGLE_CONFIG))
    with pytest.raises(InputError, match="no weights"):
        load_eagle_head(tmp_path, model)
    for name in ("pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).write_bytes(b"\x80\x02 not a head")
        with pytest.raises(InputError, match="cannot be read"):
            load_eagle_head(tmp_path, model)


CONFIG_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 40) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            sorted(
                [
                    *EAGLE_CONFIG,
                    "eagle_config",
                    "eagle_aux_hidden_state_layer_ids",
                    "norm_before_residual",
                    "transformer_layer_config",
                    "rope_scaling",
                    "rope_parameters",
                    "max_position_embeddings",
                ]
            )
        ),
        CONFIG_VALUES,
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_head_configuration_is_read_or_refused(changes, tmp_path_factory):
    """Nothing but a shape or an InputError comes out of any configuration."""
    file = tmp_path_factory.mktemp("head") / "config.json"
    file.write_text(json.dumps({**EAGLE_CONFIG, **changes}))
    try:
        facts = load_facts(file)
        shape = read_shape(facts, 5, str(file))
        build_rotary(facts, shape, str(file))
        find_activation(facts, str(file))
    except InputError as error:
        assert str(file) in str(error)
    else:
        assert 3 == len(shape.taps)
