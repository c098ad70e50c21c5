"""Which models can be recorded: what their configuration tells before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


def check_attention(facts: Mapping[str, Any], shown: str, *, complete: bool = True) -> None:
    """Raise InputError, with the reason, for a model whose attention cannot be recorded.

    ``complete`` says that defaults are filled in, as after loading; a file may leave them out.
    What a configuration does not tell is found when the model first runs, by
    ``oasis_sim.record.probe``.
    """
    facts = text_facts(facts)
    reason = _refusal(facts)
    if reason is None and complete and not facts.get("num_attention_heads"):
        reason = "names no attention heads (num_attention_heads)"
    if reason:
        raise InputError(
            reason,
            file=shown,
            field="model_type",
            fix="use a decoder-only model with grouped-query or multi-head attention",
        )


def text_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's facts of the text model; those of several parts nest it."""
    nested = facts.get("text_config")
    return {**facts, **(nested if isinstance(nested, Mapping) else {})}


def _refusal(facts: Mapping[str, Any]) -> str | None:
    """Return why a model cannot be recorded."""
    kinds = facts.get("layer_types")
    others = sorted(set(map(str, kinds)) - _KNOWN_LAYERS) if isinstance(kinds, list) else []
    if facts.get("kv_lora_rank"):
        return "uses multi-head latent attention (MLA), which keeps no keys per KV head"
    if facts.get("is_encoder_decoder"):
        return "is an encoder-decoder model; only decoder-only models have one growing KV cache"
    if not facts.get("model_type"):
        return "names no model type (model_type)"
    if others:
        return f"has layers that do not attend over tokens ({printable(', '.join(others), 80)})"
    if facts.get("attn_logit_softcapping"):
        return "caps its attention scores (attn_logit_softcapping), which is not recorded"
    if facts.get("attention_chunk_size"):
        return "attends within fixed chunks (attention_chunk_size), which is not recorded"
    if facts.get("num_kv_shared_layers"):
        return "has layers that share keys and values, which is not recorded"
    return None
