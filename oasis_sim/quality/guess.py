"""What a draft row runs: the token that a drafter guesses, row by row.

Over a given trajectory every row has the same drafts, those of the recorder's drafters. In a text
of its own each row needs a drafter that goes along with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oasis_sim.errors import UsageError
from oasis_sim.quality.backend import SparseMemory
from oasis_sim.quality.rows import DrafterRows
from oasis_sim.quality.store import Rows
from oasis_sim.record.attention import AttentionPass, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.drafters import (
    Drafter,
    NgramDrafter,
    OracleDrafter,
    SkipDrafter,
    ngram_draft,
    without_layers,
)


@dataclass(frozen=True, eq=False)
class Drafting:
    """Hold what a step tells a drafter of some rows: texts so far, and the likeliest next tokens.

    ``rows`` are the rows' places in the memory.
    """

    memory: SparseMemory
    rows: Rows
    histories: Sequence[Sequence[int]]
    likeliest: Sequence[int]

    @property
    def position(self) -> int:
        """Return the position of the newest token."""
        return len(self.histories[0]) - 1


class Guess(Protocol):
    """Guess the next token of each row."""

    def guess(self, drafting: Drafting) -> list[int]:
        """Return one token per row."""
        ...


@dataclass(frozen=True)
class GivenGuess:
    """Give every row the drafts of one trajectory; ``first`` is the position of the first."""

    drafts: Sequence[int]
    first: int

    def guess(self, drafting: Drafting) -> list[int]:
        """Return the draft of the step."""
        return [self.drafts[drafting.position - self.first]] * len(drafting.histories)


class NgramGuess:
    """Look the latest tokens up in each row's own text."""

    def guess(self, drafting: Drafting) -> list[int]:
        """Return what followed the last tokens before."""
        return [ngram_draft(history) for history in drafting.histories]


class OracleGuess:
    """Know what a row that writes its likeliest tokens writes next."""

    def guess(self, drafting: Drafting) -> list[int]:
        """Return the likeliest tokens."""
        return list(drafting.likeliest)


@dataclass(frozen=True)
class SkipGuess:
    """Run the model without some layers, over all keys and values of each row."""

    model: RecordedModel
    skipped: tuple[int, ...]

    def guess(self, drafting: Drafting) -> list[int]:
        """Return the likeliest next tokens of the remaining layers."""
        tokens = [history[-1] for history in drafting.histories]
        position = drafting.position
        watcher = DrafterRows(drafting.memory, drafting.rows, position)
        with without_layers(self.model.module, self.skipped):
            states = run_rows(self.model, tokens, position, watcher)
        return [int(token) for token in logits_of(self.model, states).argmax(dim=-1)]


def guess_along(model: RecordedModel, drafter: Drafter) -> Guess:
    """Return a drafter that goes along with texts of the rows' own.

    Raises UsageError for a drafter that reads a trajectory as a whole.
    """
    if isinstance(drafter, SkipDrafter):
        return SkipGuess(model, drafter.skipped)
    if isinstance(drafter, NgramDrafter):
        return NgramGuess()
    if isinstance(drafter, OracleDrafter):
        return OracleGuess()
    raise UsageError(f"drafter {drafter.name} reads a given text only; add --no-free-run")


def run_rows(
    model: RecordedModel, tokens: Sequence[int], position: int, attention: AttentionPass
) -> Tensor:
    """Run one token per row, all at one position; return final states [R, hidden]."""
    positions = torch.full((len(tokens),), position)
    return run_pass(model.module, torch.tensor(tokens), positions, attention)


def logits_of(model: RecordedModel, states: Tensor) -> Tensor:
    """Return the logits of final states, float32 [R, V]."""
    logits: Tensor = model.module.get_output_embeddings()(states).float()
    return logits
