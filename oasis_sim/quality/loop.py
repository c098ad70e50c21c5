"""Decode a model token by token: with full attention, or with the resident blocks only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from oasis_sim.quality.pools import LayerPools
from oasis_sim.quality.rows import DraftRow, LoopLog, Memory, TrueRow
from oasis_sim.quality.start import Start
from oasis_sim.record.attention import (
    AttentionPass,
    CausalPass,
    LayerInput,
    RowsPass,
    run_pass,
)
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.drafters import ngram_draft, without_layers
from oasis_sim.residency.predict import DRAFT, PREVIOUS
from oasis_sim.residency.rule import ResidencyRule


class FullLoop:
    """Decode with full attention."""

    def __init__(self, model: RecordedModel, start: Start) -> None:
        """Go on after the prompt."""
        self._model = model
        self._store = start.fork()
        self._position = len(start.prompt)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Process the next tokens, one or several; return the logits after each, float32 [Q, V]."""
        ids = torch.tensor(tokens)
        positions = torch.arange(self._position, self._position + len(tokens))
        attention = CausalPass(self._store, keep_queries=False)
        states = run_pass(self._model.module, ids, positions, attention)
        self._position += len(tokens)
        logits: Tensor = self._model.module.get_output_embeddings()(states).float()
        return logits


@dataclass(frozen=True)
class LoopPlan:
    """Say which blocks are kept and who predicts: a predictor of ``oasis_sim.residency``.

    ``skipped`` are the layers that the drafter leaves out; none means the n-gram drafter. Plans
    that run side by side have one drafter.
    """

    rule: ResidencyRule
    predictor: str
    skipped: tuple[int, ...] = ()


@dataclass(eq=False)
class _Run:
    """Hold one run of several that decode side by side."""

    plan: LoopPlan
    memory: Memory
    history: list[int]
    log: LoopLog = field(default_factory=LoopLog)


class ClosedLoops:
    """Decode with the resident blocks: what was not fetched is not attended, and it shows.

    Keys and values of decoded tokens come from the sparse rows themselves. A draft row follows
    each true row, at the next position, over the same blocks; its query predicts the next step.
    Sliding-window layers attend to their window, which is never offloaded. Several plans run side
    by side, as rows of the same passes; they share nothing but the prompt.
    """

    def __init__(self, model: RecordedModel, start: Start, plans: Sequence[LoopPlan]) -> None:
        """Go on after the prompt; step 0 starts with the blocks that its own query chooses."""
        self._model = model
        self._layers = start.full_layers
        self._runs = [self._begin(start, plan) for plan in plans]

    def _begin(self, start: Start, plan: LoopPlan) -> _Run:
        pools = {layer: LayerPools(plan.rule, start.kv_heads) for layer in self._layers}
        memory = Memory(plan.rule, start.fork(), start.bounds.copy(), pools)
        return _Run(plan, memory, list(start.prompt))

    @property
    def logs(self) -> list[LoopLog]:
        """Return the log of each run."""
        return [run.log for run in self._runs]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Process each run's next token; return the logits of those after, float32 [R, V]."""
        position = len(self._runs[0].history)
        rows = [TrueRow(run.memory, position) for run in self._runs]
        for run, token in zip(self._runs, tokens, strict=True):
            run.history.append(token)
        states = run_rows(self._model, tokens, position, rows)
        for run, row in zip(self._runs, rows, strict=True):
            row.write(run.log, self._layers)
            if run.plan.predictor == PREVIOUS:
                run.memory.targets = row.orders
        drafting = [
            (run, row)
            for run, row in zip(self._runs, rows, strict=True)
            if run.plan.predictor == DRAFT
        ]
        if drafting:
            self._predict(drafting, position)
        logits: Tensor = self._model.module.get_output_embeddings()(states).float()
        return logits

    def _predict(self, drafting: Sequence[tuple[_Run, TrueRow]], position: int) -> None:
        """Draft a token per run and run it over the blocks of its true row; keep its orders."""
        drafts = self._draft_tokens([run for run, _ in drafting], position)
        choosers = [DraftRow(run.memory, row) for run, row in drafting]
        after = torch.tensor([position + 1])
        passes = [
            RowsPass(run.memory.store, after, chooser)
            for (run, _), chooser in zip(drafting, choosers, strict=True)
        ]
        run_rows(self._model, drafts, position + 1, passes)
        for (run, _), draft, chooser in zip(drafting, drafts, choosers, strict=True):
            run.memory.targets = chooser.orders
            run.log.drafts.append(draft)
            orders = [chooser.orders[layer] for layer in self._layers]
            run.log.draft_order.append(np.stack(orders))

    def _draft_tokens(self, runs: Sequence[_Run], position: int) -> list[int]:
        """Guess the next tokens; the drafter has its own memory and sees the whole context."""
        skipped = runs[0].plan.skipped
        if not skipped:
            return [ngram_draft(run.history) for run in runs]
        here = torch.tensor([position])
        passes = [RowsPass(run.memory.store, here) for run in runs]
        with without_layers(self._model.module, skipped):
            tokens = [run.history[-1] for run in runs]
            states = run_rows(self._model, tokens, position, passes)
            logits = self._model.module.get_output_embeddings()(states)
        return [int(token) for token in logits.argmax(dim=-1)]


def run_rows(
    model: RecordedModel, tokens: Sequence[int], position: int, passes: Sequence[AttentionPass]
) -> Tensor:
    """Run one token per pass, all at one position; return final states [R, hidden]."""
    positions = torch.full((len(passes),), position)
    return run_pass(model.module, torch.tensor(tokens), positions, _RowByRow(passes))


class _RowByRow:
    """Give each row of a pass an attention of its own."""

    def __init__(self, passes: Sequence[AttentionPass]) -> None:
        self._passes = passes

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        out = []
        for place, row in enumerate(self._passes):
            part = slice(place, place + 1)
            one = replace(
                inputs,
                query=inputs.query[:, part],
                key=inputs.key[:, part],
                value=inputs.value[:, part],
            )
            out.append(row.attend(one))
        return torch.cat(out, dim=1)
