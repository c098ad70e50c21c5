"""Decode a model token by token: with full attention, or with the resident blocks only."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.quality.backend import (
    Backend,
    DraftPass,
    FullMemory,
    LoopPlan,
    Reference,
    SparseMemory,
    TruePass,
)
from oasis_sim.quality.guess import Drafting, Guess, logits_of, run_rows
from oasis_sim.quality.rehearse import rehearsed
from oasis_sim.quality.start import Start
from oasis_sim.quality.store import ALL
from oasis_sim.record.backend import RecordedModel
from oasis_sim.residency.predict import DRAFT, PREVIOUS
from oasis_sim.trace.trace import Order


@dataclass(eq=False)
class LoopLog:
    """Collect what the steps of one row did; L counts full-attention layers.

    By step: counts int32 [L, H], captured attention mass float64 [L, H], draft tokens; when orders
    are kept also these, uint16 [L, H, N], by the true query and by the draft's. ``alike`` counts
    what exact keys choose too, where an index in 8 bits is compared with them.
    """

    needed: list[NDArray[np.int32]] = field(default_factory=list)
    admitted: list[NDArray[np.int32]] = field(default_factory=list)
    overlap: list[NDArray[np.int32]] = field(default_factory=list)
    mass: list[NDArray[np.float64]] = field(default_factory=list)
    alike: list[NDArray[np.int32]] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    use_order: list[Order] = field(default_factory=list)
    draft_order: list[Order] = field(default_factory=list)


class FullLoops:
    """Decode rows with full attention."""

    def __init__(
        self, model: RecordedModel, start: Start, rows: int = 1, *, backend: Backend | None = None
    ) -> None:
        """Go on after the prompt."""
        self._model = model
        self._memory: FullMemory = (backend or Reference()).full(start, rows)
        self._position = len(start.prompt)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Process each row's next token; return the logits of those after, float32 [R, V]."""
        states = run_rows(self._model, tokens, self._position, self._memory.full_rows())
        self._position += 1
        return logits_of(self._model, states)


class ClosedLoops:
    """Decode with the resident blocks: what was not fetched is not attended, and it shows.

    Keys and values of decoded tokens come from the sparse rows themselves. A draft row follows
    each true row, at the next position, over the same blocks; its query predicts the next step.
    Sliding-window layers attend to their window, which is never offloaded. Several plans run side
    by side, as rows of the same passes; they share nothing but the prompt and the drafter.
    """

    def __init__(
        self,
        model: RecordedModel,
        start: Start,
        plans: Sequence[LoopPlan],
        guess: Guess,
        *,
        backend: Backend | None = None,
        keep_orders: bool = False,
    ) -> None:
        """Go on after the prompt; step 0 starts with the blocks that its own query chooses."""
        self._model = model
        self._guess = guess
        self._layers = start.full_layers
        self._plans = tuple(plans)
        self._memory: SparseMemory = (backend or Reference()).sparse(start, plans)
        self._histories = [list(start.prompt) for _ in plans]
        self._keep_orders = keep_orders
        self.logs = [LoopLog() for _ in plans]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Process each row's next token; return the logits of those after, float32 [R, V]."""
        position = len(self._histories[0])
        for history, token in zip(self._histories, tokens, strict=True):
            history.append(token)
        true_rows = self._memory.true_rows(position)
        with self._rehearsal():
            states = run_rows(self._model, tokens, position, true_rows)
        self._write(true_rows)
        logits = logits_of(self._model, states)
        self._predict(true_rows, logits.argmax(dim=-1).tolist())
        return logits

    def _rehearsal(self) -> contextlib.AbstractContextManager[None]:
        """Let layers tell their queries a layer ahead, if the plans choose by these."""
        if not self._plans[0].rehearse:
            return contextlib.nullcontext()
        return rehearsed(self._model, self._memory.rehearsed)

    def _write(self, done: TruePass) -> None:
        """Add a step to the logs."""
        moved, masses = done.moved, done.mass
        mass = np.stack([masses[layer] for layer in self._layers], axis=1)
        counts = {
            name: np.stack([getattr(moved[layer], name) for layer in self._layers], axis=1)
            for name in ("needed", "admitted", "overlap")
        }
        if done.alike:
            counts["alike"] = np.stack([done.alike[layer] for layer in self._layers], axis=1)
        for row, log in enumerate(self.logs):
            log.mass.append(mass[row])
            for name, values in counts.items():
                getattr(log, name).append(values[row])
        if self._keep_orders:
            for row, order in enumerate(self._stacked(done)):
                self.logs[row].use_order.append(order)

    def _stacked(self, done: TruePass | DraftPass) -> NDArray[np.uint16]:
        """Return the orders of a pass, [R, L, H, N]."""
        orders = done.orders
        return np.stack([orders[layer] for layer in self._layers], axis=1)

    def _predict(self, true_rows: TruePass, likeliest: Sequence[int]) -> None:
        """Set the targets of the next step by each row's predictor.

        ``previous`` keeps the true order; ``draft`` drafts a token per row and runs it over the
        blocks of its true row; the others take the next step's own order.
        """
        memory = self._memory
        previous, drafting = self._rows_of(PREVIOUS), self._rows_of(DRAFT)
        if previous:
            memory.predict(previous, true_rows)
        if not drafting:
            return
        rows = ALL if len(drafting) == len(self._plans) else drafting
        histories = [self._histories[row] for row in drafting]
        state = Drafting(memory, rows, histories, [likeliest[row] for row in drafting])
        drafts = self._guess.guess(state)
        chooser = memory.draft_rows(rows, true_rows)
        run_rows(self._model, drafts, true_rows.position + 1, chooser)
        memory.predict(drafting, chooser)
        for row, draft in zip(drafting, drafts, strict=True):
            self.logs[row].drafts.append(draft)
        if self._keep_orders:
            for row, order in zip(drafting, self._stacked(chooser), strict=True):
                self.logs[row].draft_order.append(order)

    def _rows_of(self, predictor: str) -> list[int]:
        return [row for row, plan in enumerate(self._plans) if plan.predictor == predictor]
