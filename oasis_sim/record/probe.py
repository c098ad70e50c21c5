"""Look at a model before recording it: what its layers see, and whether the recorder sees it right.

Model types are not listed one by one. The first tokens of the prompt go through the model twice,
with the recorder's attention and with the library's own (eager); a model that hides layers, adds
something to its scores or scales its logits gives different logits and is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.backend import RecordedModel

_FEW_TOKENS = 64
_MOST_TOKENS = 1024
_TOLERANCE = {"float32": 2e-3, "bfloat16": 0.1}
"""Largest accepted difference of logits, as a share of the largest logit."""


@dataclass(frozen=True)
class LayerViews:
    """Hold what each layer sees: a sliding window in tokens or None for all, and its scaling."""

    spans: tuple[int | None, ...]
    scalings: tuple[float, ...]


def probe(model: RecordedModel, tokens: Sequence[int]) -> LayerViews:
    """Compare the recorder's view of the first tokens with the library's; return the views.

    Enough tokens are taken for a sliding window to matter, up to 1,024. Raises InputError for a
    model whose attention the recorder does not see as it is.
    """
    config = model.module.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or 0
    count = min(len(tokens), max(_FEW_TOKENS, min(window + _FEW_TOKENS, _MOST_TOKENS)))
    ids = torch.tensor(tokens[:count])
    attention = CausalPass(KeyValueStore(model.layers, count), keep_queries=False)
    with torch.inference_mode():
        seen, expected = _logits(model, ids, attention)
    if sorted(attention.spans) != list(range(model.layers)):
        raise InputError("hides layers from the recorder", file=model.file, field="model_type")
    heads = {int(attention.store.keys(layer).shape[0]) for layer in range(model.layers)}
    if heads != {model.kv_heads}:
        found = ", ".join(map(str, sorted(heads)))
        raise InputError(
            f"keeps keys of {found} KV heads, its configuration says {model.kv_heads}",
            file=model.file,
            field="num_key_value_heads",
        )
    distance = float((seen - expected).abs().max() / expected.abs().max())
    if distance > _TOLERANCE[model.dtype]:
        raise InputError(
            f"computes attention or logits in a way that the recorder does not see (logits differ "
            f"by {distance:.1%} of the largest)",
            file=model.file,
            field="model_type",
            fix="use a model with plain grouped-query or multi-head attention",
        )
    numbers = range(model.layers)
    return LayerViews(
        spans=tuple(attention.spans[layer] for layer in numbers),
        scalings=tuple(attention.scalings[layer] for layer in numbers),
    )


def _logits(
    model: RecordedModel, ids: torch.Tensor, attention: CausalPass
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits after each token by the recorder's attention and by the library's."""
    try:
        states = run_pass(model.module, ids, torch.arange(len(ids)), attention)
        seen = model.module.get_output_embeddings()(states).float()
        with library_attention(model.module):
            whole = model.module(input_ids=ids[None].to(model.module.device), use_cache=False)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a foreign model's code raises anything
        problem = printable(str(error).strip().split("\n")[0], 160)
        raise InputError(
            f"cannot be run by the recorder ({type(error).__name__}: {problem})",
            file=model.file,
            field="model_type",
        ) from None
    return seen, whole.logits[0].float()


@contextlib.contextmanager
def library_attention(module: Any) -> Iterator[None]:
    """Let a model use the library's eager attention for a while."""
    config = module.config.get_text_config(decoder=True)
    ours = config._attn_implementation  # noqa: SLF001 - the setter also reloads kernels
    try:
        config._attn_implementation = "eager"  # noqa: SLF001
        yield
    finally:
        config._attn_implementation = ours  # noqa: SLF001
