"""Read a model's shape from a Hugging Face config.json, built in or the user's."""

from __future__ import annotations

import os
from pathlib import Path

from oasis_sim.fileio import Document, Fields, find_input, load_json, printable, shipped_inputs
from oasis_sim.model.shape import ModelShape

_QK_NORM = ("qwen3", "qwen3_moe")
_EXPERTS = ("qwen3_moe", "mixtral")
_FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
_DTYPES = ("bfloat16", "float16", "float32")
_LARGEST = 2**24
_BYTES_16_BIT = 2


def model_names() -> tuple[str, ...]:
    """List the built-in models."""
    return tuple(shipped_inputs("model"))


def load_model(name: str | Path) -> ModelShape:
    """Read a built-in model (``qwen3-8b``, ``Qwen/Qwen3-8B``), a config.json or its folder.

    Raise InputError for an unknown name and for a config that is incomplete, contradictory or
    of a kind whose KV cache is not per KV head.
    """
    text = str(name)
    if os.path.isdir(text):
        path = Path(text) / "config.json"
    else:
        short = text.rpartition("/")[2]
        builtin = short.lower() in model_names() and not os.path.lexists(text)
        path = find_input(short if builtin else text, "model")
    return read_config(load_json(path), path)


def read_config(document: Document, path: Path) -> ModelShape:
    """Check a parsed config.json and build the shape; serve 32-bit weights as 16-bit.

    Keys that do not change the shape are ignored: such files hold many.
    """
    fields = Fields.of(document)
    family = fields.text("model_type", choices=_FAMILIES)
    _refuse_unsupported(fields)
    hidden = fields.integer("hidden_size", low=1, high=_LARGEST)
    query_heads = fields.integer("num_attention_heads", low=1, high=_LARGEST)
    kv_heads = fields.integer("num_key_value_heads", query_heads, low=1, high=_LARGEST)
    head_dim = fields.integer("head_dim", hidden // query_heads, low=1, high=_LARGEST)
    if query_heads % kv_heads:
        problem = f"{kv_heads} does not divide the {query_heads} query heads"
        fields.mistake("num_key_value_heads", problem, "check both", None)
    if not fields.has("head_dim") and hidden % query_heads:
        problem = f"{hidden} is not a multiple of the {query_heads} heads"
        fields.mistake("hidden_size", problem, "add head_dim", None)
    _check_dtype(fields)
    experts, per_token, moe_width = _experts(fields, family)
    shape = ModelShape(
        name=_name(fields, path),
        layers=fields.integer("num_hidden_layers", low=1, high=_LARGEST),
        hidden=hidden,
        intermediate=fields.integer("intermediate_size", low=1, high=_LARGEST),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=fields.integer("vocab_size", low=1, high=_LARGEST),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        max_context=fields.integer("max_position_embeddings", low=1, high=2**31),
        experts=experts,
        experts_per_token=per_token,
        moe_intermediate=moe_width,
        qk_norm=family in _QK_NORM,
        qkv_bias=fields.flag("attention_bias", family == "qwen2"),
        bytes_per_weight=_BYTES_16_BIT,
        bytes_per_kv=_BYTES_16_BIT,
    )
    fields.keys()
    fields.finish()
    return shape


def _name(fields: Fields, path: Path) -> str:
    """Take the model's own name, else the file's, else the folder's."""
    own = fields.text("_name_or_path", "-").rstrip("/").rpartition("/")[2]
    if own not in {"", "-", "."}:
        return printable(own, 80)
    return printable(path.parent.name if path.stem == "config" else path.stem, 80) or "model"


def _refuse_unsupported(fields: Fields) -> None:
    for key, reason in (
        ("kv_lora_rank", "keys and values are compressed together, not kept per KV head"),
        ("quantization_config", "quantised weights are not modelled"),
        ("layer_types", ""),
        ("sliding_window", ""),
    ):
        if not fields.has(key):
            continue
        if key == "layer_types":
            if set(fields.texts(key)) - {"full_attention"}:
                fields.mistake(key, "not every layer has full attention", "not modelled", None)
        elif key == "sliding_window":
            if fields.flag("use_sliding_window", True):
                fix = "set it to null if the model is used with full attention"
                fields.mistake(key, "sliding-window attention is not modelled", fix, None)
        else:
            fields.mistake(key, reason, "choose another model", None)


def _check_dtype(fields: Fields) -> None:
    for key in ("torch_dtype", "dtype"):
        if fields.has(key):
            fields.text(key, choices=_DTYPES)


def _experts(fields: Fields, family: str) -> tuple[int, int, int]:
    """Return experts, experts per token and width of an expert (zeros for a dense model)."""
    if family not in _EXPERTS:
        return 0, 0, 0
    is_mixtral = family == "mixtral"
    count = fields.integer(
        "num_local_experts" if is_mixtral else "num_experts", low=1, high=_LARGEST
    )
    per_token = fields.integer("num_experts_per_tok", low=1, high=_LARGEST)
    width_key = "intermediate_size" if is_mixtral else "moe_intermediate_size"
    width = fields.integer(width_key, low=1, high=_LARGEST)
    if per_token > count:
        problem = f"{per_token} is more than the {count} experts"
        fields.mistake("num_experts_per_tok", problem, "check both", None)
    if fields.integer("decoder_sparse_step", 1, low=1) != 1:
        fields.mistake("decoder_sparse_step", "layers without experts are not modelled", None, None)
    if fields.is_filled_list("mlp_only_layers"):
        fields.mistake("mlp_only_layers", "layers without experts are not modelled", None, None)
    return count, per_token, width
