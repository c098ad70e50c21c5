"""Model shapes: published sizes, and configurations that must be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oasis_sim.errors import InputError
from oasis_sim.fileio import find_input
from oasis_sim.model import ModelShape, load_model, model_names
from tests.strategies import bad_counts, file_contents, json_values, models

COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
MOE_COUNTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


def config_of(name: str) -> dict[str, Any]:
    """Return a built-in config.json."""
    config: dict[str, Any] = json.loads(find_input(name, "model").read_text("utf-8"))
    return config


def load_changed(directory: Path, name: str = "qwen3-8b", **changes: Any) -> ModelShape:
    """Load a built-in configuration with some keys changed (`...` removes one)."""
    config = {key: value for key, value in config_of(name).items() if changes.get(key) is not ...}
    config.update({key: value for key, value in changes.items() if value is not ...})
    path = directory / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load_model(path)


@pytest.mark.parametrize(
    ("name", "weights_gb", "active_billions", "kv_bytes"),
    [
        # KV bytes per token: paper's numbers; weights: parameter counts of the model cards.
        ("qwen3-8b", 16.38, 8.19, 147_456),
        ("qwen3-32b", 65.52, 32.76, 262_144),
        ("qwen3-235b-a22b", 470.19, 22.19, 192_512),
        ("llama-3.1-8b", 16.06, 8.03, 131_072),
        ("llama-3.1-70b", 141.11, 70.55, 327_680),
        ("smollm2-135m", 0.26903, 0.1345, 23_040),
    ],
)
def test_published_sizes(
    name: str, weights_gb: float, active_billions: float, kv_bytes: int
) -> None:
    """Weights, active parameters and KV bytes per token are those that are published."""
    model = load_model(name)
    assert weights_gb == pytest.approx(model.weight_bytes / 1e9, rel=5e-4)
    assert active_billions == pytest.approx(model.active_params / 1e9, rel=5e-4)
    assert kv_bytes == model.kv_bytes_per_token


def test_exact_parameter_counts() -> None:
    """Parameters agree with the checkpoints' own counts, to the last one."""
    counts = {name: load_model(name).params for name in model_names()}
    assert 8_190_735_360 == counts["qwen3-8b"]
    assert 8_030_261_248 == counts["llama-3.1-8b"]
    assert 134_515_008 == counts["smollm2-135m"]


def test_block_of_the_paper() -> None:
    """A block of 16 tokens, one head, one layer of Qwen3-8B: K and V together are 8 KiB."""
    assert 8192 == load_model("qwen3-8b").block_head_bytes(16)


def test_kv_per_gpu_under_tensor_parallelism() -> None:
    """Under TP8 each of the four KV heads of Qwen3-235B is held twice: 48,128 bytes a token."""
    model = load_model("qwen3-235b-a22b")
    assert [4, 2, 1, 1] == [model.kv_heads_per_gpu(tp) for tp in (1, 2, 4, 8)]
    assert 48_128 == model.kv_bytes_per_token // model.kv_heads * model.kv_heads_per_gpu(8)
    held = {tp: [model.kv_heads_of_gpu(rank, tp) for rank in range(tp)] for tp in (1, 2, 8)}
    assert [slice(0, 4)] == held[1]
    assert [slice(0, 2), slice(2, 4)] == held[2]
    assert [0, 0, 1, 1, 2, 2, 3, 3] == [heads.start for heads in held[8]]


@pytest.mark.parametrize("name", ["Qwen3-8B", "Qwen/Qwen3-8B", "QWEN3-8B", "qwen3-8b.json"])
def test_names_of_built_in_models(name: str) -> None:
    """A built-in model is found under the names that people type."""
    assert load_model("qwen3-8b") == load_model(name)


@pytest.mark.parametrize("name", model_names())
def test_own_name_loads_again(name: str) -> None:
    """The name that a built-in model reports is one that loads it."""
    assert load_model(name) == load_model(load_model(name).name)


@pytest.mark.parametrize("name", model_names())
def test_built_in_configurations_name_their_source(name: str) -> None:
    """Each configuration says where it was published."""
    assert config_of(name)["_source"].startswith("https://huggingface.co/")


def test_folder_and_file(tmp_path: Path) -> None:
    """A folder with a config.json loads like the file; the folder names a nameless model."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    shape = load_changed(folder, _name_or_path=...)
    assert "my-model" == shape.name
    assert shape == load_model(folder)


@given(models())
def test_counts_add_up(model: ModelShape) -> None:
    """Layers, tables and final norm make up all parameters; a token sees no more than all."""
    linear = sum(outputs * inputs for _, outputs, inputs in model.linear_shapes())
    small = model.layer_active_params - linear
    router = model.hidden * model.experts
    biases = (model.query_heads + 2 * model.kv_heads) * model.head_dim
    assert 2 * model.hidden <= small <= 2 * model.hidden + router + biases + 2 * model.head_dim
    assert model.layer_active_params <= model.layer_params
    tables = model.params - model.layers * model.layer_params - model.hidden
    assert (1 if model.tied_embeddings else 2) * model.lm_head_params == tables
    assert model.kv_bytes_per_token == (model.layers * model.kv_heads * model.block_head_bytes(1))


@given(models(), st.integers(0, 10_000))
def test_expected_experts_bounds(model: ModelShape, rows: int) -> None:
    """No row reaches no expert, one row its own, many rows at most all."""
    assert 0.0 == model.expected_experts(0)
    assert model.experts_per_token == pytest.approx(model.expected_experts(1))
    assert model.expected_experts(rows) <= model.experts
    assert model.expected_experts(rows) <= model.expected_experts(rows + 1)


@pytest.mark.parametrize("key", COUNTS + MOE_COUNTS)
@given(value=bad_counts())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_bad_counts_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    """Each count refuses every wrong kind or range of value, naming the key."""
    optional = key in ("head_dim", "num_key_value_heads")
    if value is None and optional:
        return
    with pytest.raises(InputError, match=key) as caught:
        load_changed(tmp_path, "qwen3-235b-a22b", **{key: value})
    assert 3 == caught.value.exit_code


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "deepseek_v3"}, "use one of llama"),
        ({"model_type": ...}, "model_type: is missing"),
        ({"kv_lora_rank": 512}, "compressed together"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "full attention"),
        ({"num_key_value_heads": 5}, "does not divide"),
        ({"head_dim": ..., "hidden_size": 4100}, "not a multiple"),
        ({"tie_word_embeddings": "no"}, "true or false"),
        ({"torch_dtype": "int8"}, "use one of bfloat16"),
        ({"hidden_size": ..., "vocab_size": ...}, "2 mistakes"),
    ],
)
def test_unsupported_and_contradictory(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """What is not modelled, or cannot be, is refused and named."""
    with pytest.raises(InputError, match=said):
        load_changed(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 129}, "more than the 128 experts"),
        ({"decoder_sparse_step": 2}, "layers without experts"),
        ({"mlp_only_layers": [0]}, "layers without experts"),
    ],
)
def test_mixtures_that_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Mixtures of experts with dense layers, or with too few experts, are refused."""
    with pytest.raises(InputError, match=said):
        load_changed(tmp_path, "qwen3-235b-a22b", **changes)


def test_families(tmp_path: Path) -> None:
    """Families differ in head norms, biases and the names of their experts."""
    llama = load_changed(tmp_path, "llama-3.1-8b")
    assert (False, False) == (llama.qk_norm, llama.qkv_bias)
    qwen2 = load_changed(tmp_path, model_type="qwen2", attention_bias=...)
    assert (False, True) == (qwen2.qk_norm, qwen2.qkv_bias)
    mixtral = load_changed(
        tmp_path, "llama-3.1-8b", model_type="mixtral", num_local_experts=8, num_experts_per_tok=2
    )
    assert (8, 2, 14336) == (mixtral.experts, mixtral.experts_per_token, mixtral.moe_intermediate)
    assert load_changed(tmp_path, sliding_window=4096, use_sliding_window=False).layers == 36


def test_defaults_of_hugging_face(tmp_path: Path) -> None:
    """Missing KV heads mean one per query head, a missing head size an even split."""
    shape = load_changed(tmp_path, "llama-3.1-8b", num_key_value_heads=...)
    assert (32, 128) == (shape.kv_heads, shape.head_dim)


@given(
    content=file_contents(find_input("qwen3-8b", "model").read_bytes())
    | json_values().map(lambda value: json.dumps(value).encode())
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzz(tmp_path: Path, content: bytes) -> None:
    """Any config.json is a model or an InputError that names the file."""
    path = tmp_path / "config.json"
    path.write_bytes(content)
    try:
        assert load_model(path).weight_bytes > 0
    except InputError as error:
        assert str(path) in str(error)
