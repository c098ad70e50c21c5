"""Prefill: run the prompt through a model chunk by chunk, and see whether the model knows it."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oasis_sim.errors import InputError
from oasis_sim.record.attention import CausalPass, KeyValueStore, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part, Parts
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.prompt import Prompt

_LOGIT_ROWS = 64
_JUDGED_TOKENS = 4096


def prefill(
    model: RecordedModel,
    prompt: Prompt,
    store: KeyValueStore,
    options: RecordOptions,
    progress: ProgressCallback,
    parts: Parts,
) -> tuple[Tensor, float]:
    """Fill the store chunk by chunk; return the last state and the perplexity.

    The perplexity is that of the prompt's first 4,096 tokens, so that a broken model is found
    early. Raises InputError when it is above the limit.
    """
    ids = torch.tensor(prompt.tokens, dtype=torch.int64)
    count, log_loss, perplexity = len(ids), 0.0, math.nan
    judged = min(count, _JUDGED_TOKENS) - 1
    state = torch.empty(0)
    for start in range(0, count, options.chunk_tokens):
        progress("prefill", start, count)
        end = min(start + options.chunk_tokens, count)
        part = parts.get(f"prefill-{start:08d}", partial(_run_chunk, model, ids, store, start, end))
        restore_rows(store, part, end, model.module.device)
        log_loss += float(part["log_loss"])
        state = part["state"].to(model.module.device)
        if start <= judged < end:
            perplexity = check_perplexity(log_loss / judged, options.max_perplexity, model.file)
    progress("prefill", count, count)
    return state, perplexity


def _run_chunk(
    model: RecordedModel, ids: Tensor, store: KeyValueStore, start: int, end: int
) -> Part:
    """Run the tokens start .. end - 1; return their keys and values, loss and last state."""
    attention = CausalPass(store, keep_queries=False)
    states = run_pass(model.module, ids[start:end], torch.arange(start, end), attention)
    targets = ids[start + 1 : min(end + 1, _JUDGED_TOKENS)]
    loss = _log_loss(model, states[: len(targets)], targets)
    facts = {"log_loss": torch.tensor(loss, dtype=torch.float64), "state": states[-1]}
    return {**facts, **stored_rows(store, start, end)}


def stored_rows(store: KeyValueStore, start: int, end: int) -> Part:
    """Return the keys and values of the tokens start .. end - 1, [H, Q, d] by layer."""
    part = {}
    for layer in range(store.layers):
        part[f"key.{layer}"] = store.keys(layer)[:, start:end]
        part[f"value.{layer}"] = store.values(layer)[:, start:end]
    return part


def restore_rows(store: KeyValueStore, part: Part, end: int, device: torch.device) -> None:
    """Append a part's keys and values to a store that does not hold the tokens up to ``end``."""
    for layer in range(store.layers):
        if store.filled(layer) < end:
            key, value = part[f"key.{layer}"], part[f"value.{layer}"]
            store.append(layer, key.to(device), value.to(device))


def check_perplexity(mean_log_loss: float, limit: float, file: str) -> float:
    """Return the perplexity; raise InputError when it is above the limit or not a number."""
    perplexity = math.exp(mean_log_loss) if mean_log_loss < 700.0 else math.inf
    if not perplexity <= limit:
        raise InputError(
            f"reads the prompt with perplexity {perplexity:.4g}, above {limit:g}: its weights or "
            "tokenizer are broken, or it does not know this kind of text",
            file=file,
            fix="check the model; for unusual text raise --max-perplexity",
        )
    return perplexity


def _log_loss(model: RecordedModel, states: Tensor, targets: Tensor) -> float:
    """Return the summed negative log-likelihood; a few rows of logits at a time."""
    head = model.module.get_output_embeddings()
    total = 0.0
    for start in range(0, len(targets), _LOGIT_ROWS):
        part = slice(start, start + _LOGIT_ROWS)
        logits = head(states[part]).float()
        loss = cross_entropy(logits, targets[part].to(logits.device), reduction="sum")
        total += float(loss)
    return total
