"""A trace in a few words and numbers."""

from __future__ import annotations

from typing import Any

from oasis_sim.trace.build import flatten
from oasis_sim.trace.trace import AttentionTrace


def describe(trace: AttentionTrace) -> dict[str, Any]:
    """Return the facts that a person asks first, by name; units are in the names."""
    model, text = trace.meta["model"], trace.meta.get("text") or {}
    facts: dict[str, Any] = {
        "name": trace.name,
        "origin": trace.origin,
        "model": str(model["name"]),
        "model_layers": trace.model_layers,
        "model_kv_heads": int(model["kv_heads"]),
        "recorded_layers": trace.layers,
        "full_attention_layers": len(trace.full_layers),
        "recorded_kv_heads": trace.kv_heads,
        "steps": trace.steps,
        "first_position": int(trace.position[0]),
        "last_position": int(trace.position[-1]),
        "block_tokens": trace.block_tokens,
        "blocks_ranked_per_head": trace.stored_blocks,
        "mass": "none" if trace.mass is None else f"{trace.mass.shape[-1]} blocks per head",
        "text": _words(text.get("name")),
        "text_licence": _words(text.get("licence")),
        "recorder": _words(trace.meta.get("recorder")),
        "array_bytes": sum(array.nbytes for array in flatten(trace).values()),
    }
    for name, flags in trace.accepted.items():
        facts[f"accepted_share.{name}"] = float(flags.mean())
    for name in trace.drafters:
        facts.setdefault(f"accepted_share.{name}", None)
    for key, value in (trace.meta.get("synthetic") or {}).items():
        facts[f"synthetic.{key}"] = value
    return facts


def summarise(trace: AttentionTrace) -> dict[str, Any]:
    """Return one line about a trace for a list of several."""
    facts = describe(trace)
    names = ("name", "origin", "model", "recorded_layers", "recorded_kv_heads", "steps")
    line = {name: facts[name] for name in (*names, "first_position", "block_tokens", "text")}
    return line | {"drafters": ", ".join(trace.drafters) or "none"}


def _words(value: object) -> str:
    """Return a header value as text."""
    return "not stated" if value is None else str(value)
