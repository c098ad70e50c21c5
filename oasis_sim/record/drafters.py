"""Drafters: what guesses the token after the one being processed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from oasis_sim.record.attention import KeyValueStore, RowsPass, run_pass

_LONGEST_MATCH = 3


def ngram_draft(history: Sequence[int]) -> int:
    """Return what followed the latest earlier occurrence of the history's longest ending.

    Endings of 3, then 2, then 1 tokens are looked up; a last token that never occurred before is
    repeated. History must not be empty.
    """
    end = len(history)
    for length in range(min(_LONGEST_MATCH, end - 1), 0, -1):
        ending = list(history[end - length :])
        for start in range(end - length - 1, -1, -1):
            if list(history[start : start + length]) == ending:
                return int(history[start + length])
    return int(history[-1])


def ngram_drafts(tokens: Sequence[int], first: int, steps: int) -> list[int]:
    """Return the n-gram draft of each step; step s has seen ``tokens[: first + s + 1]``."""
    return [ngram_draft(tokens[: first + step + 1]) for step in range(steps)]


@contextlib.contextmanager
def without_layers(model: Any, skipped: Sequence[int]) -> Iterator[None]:
    """Leave out layers of a model for a while; the others keep their numbers in the store."""
    base = model.get_decoder()
    whole, count = base.layers, base.config.num_hidden_layers
    kept = [layer for index, layer in enumerate(whole) if index not in set(skipped)]
    try:
        base.layers = torch.nn.ModuleList(kept)
        base.config.num_hidden_layers = len(kept)
        yield
    finally:
        base.layers = whole
        base.config.num_hidden_layers = count


def skip_drafts(
    model: Any, store: KeyValueStore, tokens: Tensor, positions: Tensor, skipped: Sequence[int]
) -> list[int]:
    """Return the greedy next token of the model without some layers, for each row.

    Self-speculation (Zhang et al. 2024): the kept layers read the full model's keys and values
    before the row's position. tokens, positions int64 [R].
    """
    with without_layers(model, skipped):
        states = run_pass(model, tokens, positions, RowsPass(store, positions))
        logits = model.get_output_embeddings()(states)
    return [int(token) for token in logits.argmax(dim=-1)]
