"""Drafters: what guesses the token after the one being processed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from oasis_sim.record.attention import KeyValueStore, RowsPass, layer_stack, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.trajectory import Trajectory

_LONGEST_MATCH = 3
_ROWS = 64


class Drafter(Protocol):
    """Guess the next token of each step of a trajectory."""

    @property
    def name(self) -> str:
        """Return the name of the draft's orders in the trace."""
        ...

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return a token per step; step s knows the tokens up to ``token[s]``."""
        ...

    def header(self) -> dict[str, Any]:
        """Return what the trace's header says of the drafter."""
        ...


@dataclass(frozen=True)
class NgramDrafter:
    """Look the latest tokens up in the text so far."""

    name: str = "ngram"

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return what followed the last tokens before."""
        del model, progress
        return ngram_drafts(path.tokens, path.prompt_tokens, path.steps)

    def header(self) -> dict[str, Any]:
        """Say how it guesses."""
        return {"method": "n-gram lookup", "longest_match": _LONGEST_MATCH}


@dataclass(frozen=True)
class OracleDrafter:
    """Know the next token: its own query predicts, so what is left is what sparse rows lose."""

    name: str = "oracle"

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return the trajectory's next tokens."""
        del model, progress
        return list(path.tokens[path.prompt_tokens + 1 :])

    def header(self) -> dict[str, Any]:
        """Say how it guesses."""
        return {"method": "the true next token"}


@dataclass(frozen=True)
class SkipDrafter:
    """Run the model without some layers (self-speculation)."""

    name: str
    skipped: tuple[int, ...]

    def draft(
        self, model: RecordedModel, path: Trajectory, progress: ProgressCallback
    ) -> list[int]:
        """Return the likeliest next tokens of the remaining layers."""
        drafts: list[int] = []
        for start in range(0, path.steps, _ROWS):
            progress(f"drafts of {self.name}", start, path.steps)
            end = min(start + _ROWS, path.steps)
            tokens = path.tokens[path.prompt_tokens + start : path.prompt_tokens + end]
            here = path.positions[start:end]
            ids = torch.tensor(tokens)
            drafts += skip_drafts(model.module, path.store, ids, here, self.skipped)
        progress(f"drafts of {self.name}", path.steps, path.steps)
        return drafts

    def header(self) -> dict[str, Any]:
        """Say how it guesses."""
        return {"method": "layers left out", "layers": list(self.skipped)}


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
    base, name = layer_stack(model)
    config, whole = base.config, getattr(base, name)
    count, kinds = config.num_hidden_layers, getattr(config, "layer_types", None)
    left_out = set(skipped)
    kept = [index for index in range(count) if index not in left_out]
    try:
        setattr(base, name, torch.nn.ModuleList(whole[index] for index in kept))
        config.num_hidden_layers = len(kept)
        if kinds is not None:
            config.layer_types = [kinds[index] for index in kept]
        yield
    finally:
        setattr(base, name, whole)
        config.num_hidden_layers = count
        if kinds is not None:
            config.layer_types = kinds


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
