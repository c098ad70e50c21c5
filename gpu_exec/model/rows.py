"""The passes of one step over paged memory, layer by layer, for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_exec.model.exchange import kernel_query, model_output, token_rows
from gpu_exec.model.kernels import PageKernels
from gpu_exec.model.memory import DenseLayer, OffloadedLayer
from oasis_sim.quality.backend import LoopPlan
from oasis_sim.quality.pools import PoolStep
from oasis_sim.quality.rows import rounded_input
from oasis_sim.quality.store import ALL, LayerStore, Rows, attend
from oasis_sim.record.attention import LayerInput
from oasis_sim.record.orders import order_blocks
from oasis_sim.trace.trace import Order

DecisionWatcher = Callable[[int, int, Tensor, Tensor], None]
"""Called with layer, position, the target's scores and what is attended, [R, H, blocks] each."""

Steer = Callable[["PagedMemory", int, int, Tensor], Tensor]
"""Called with the memory, layer, position and the target's scores; returns those that decide."""


@dataclass(eq=False)
class PagedMemory:
    """Hold what the rows keep from step to step, by layer.

    ``layers`` has the full-attention layers, paged. ``stores`` has the keys and values of all
    layers as they are: sliding-window layers attend there, captured mass is measured there, and
    drafters that see the whole context read there. No other attention does.
    """

    plans: Sequence[LoopPlan]
    kernels: PageKernels
    layers: dict[int, OffloadedLayer]
    stores: dict[int, LayerStore]
    device: Any
    watch: DecisionWatcher | None = None
    steer: Steer | None = None
    started: bool = field(default=False, init=False)
    rehearsed: dict[int, Tensor] = field(default_factory=dict, init=False)

    def seen(self, inputs: LayerInput) -> LayerInput:
        """Return a layer's input in the 16 bits in which it is kept."""
        return rounded_input(inputs)

    def true_rows(self, position: int) -> TrueRows:
        """Return the pass of a step's true rows."""
        return TrueRows(self, position)

    def draft_rows(self, rows: Rows, true_rows: TrueRows) -> DraftRows:
        """Return the pass of the drafts of some true rows."""
        return DraftRows(self, rows, true_rows)

    def predict(self, rows: list[int], chooser: TrueRows | DraftRows) -> None:
        """Take the next targets of some rows from a pass: of drafts, or of all true rows."""
        for layer in self.layers.values():
            source = layer.true_scores if isinstance(chooser, TrueRows) else layer.draft_scores
            layer.target_scores[rows] = source[rows]

    def number(self, value: int) -> Tensor:
        """Return a number per row on the device, int32 [R]."""
        return torch.full((len(self.plans),), value, dtype=torch.int32, device=self.device)

    def order(self, scores: Tensor, position: int) -> Order:
        """Order the complete blocks at a position by scores [R, H, blocks], uint16 [R, H, N]."""
        blocks = position // self.plans[0].rule.block_tokens
        shown = scores[..., :blocks]
        listed = shown.new_ones((len(shown), blocks), dtype=torch.bool)
        return np.asarray(order_blocks(shown, listed).cpu()).astype(np.uint16)


class TrueRows:
    """Append the rows, select and gather by the targets, attend what is resident.

    What was done stays on the device until it is asked for, after the pass.
    """

    def __init__(self, memory: PagedMemory, position: int) -> None:
        """Take the step at a position."""
        self._memory = memory
        self.position = position
        self._at = memory.number(position)
        self._before = memory.number(position - 1)
        self.alike: dict[int, NDArray[np.int32]] = {}
        self._first = not memory.started
        memory.started = True
        self._counts: list[Tensor] = []  # by layer: needed, admitted, overlap, int32 [R, H, 3]
        self._mass: list[Tensor] = []
        self._attended: list[Tensor] = []

    @property
    def moved(self) -> dict[int, PoolStep]:
        """Return what was read, needed and admitted; step 0 needs and admits nothing."""
        counts = torch.stack(self._counts).cpu().numpy()
        attended = torch.stack(self._attended).cpu().numpy()
        if self._first:
            counts[..., :2] = 0
        return {
            layer: PoolStep(attended[place], *np.moveaxis(counts[place], -1, 0))
            for place, layer in enumerate(self._memory.layers)
        }

    @property
    def mass(self) -> dict[int, NDArray[np.float64]]:
        """Return the share of full attention that was read, [R, H]."""
        mass = np.asarray(torch.stack(self._mass).cpu())
        return dict(zip(self._memory.layers, mass, strict=True))

    @property
    def orders(self) -> dict[int, Order]:
        """Return the orders by the true queries; the scores are kept until the next step."""
        return {
            layer: self._memory.order(pages.true_scores, self.position)
            for layer, pages in self._memory.layers.items()
        }

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        memory, layer = self._memory, inputs.layer
        inputs = memory.seen(inputs)
        store = memory.stores[layer]
        store.append(inputs.key, inputs.value)
        if layer not in memory.layers:
            return attend(store, inputs, ALL, store.filled)
        pages, kernels = memory.layers[layer], memory.kernels
        query, scores = self.prepare(inputs)
        out = kernels.attend(
            query[None], pages.pages.units, pages.table, pages.counts, self._at, inputs.scaling
        )
        self._report(inputs, pages, scores)
        pages.complete(self.position)
        return model_output(out[0], inputs)

    def prepare(self, inputs: LayerInput) -> tuple[Tensor, Tensor]:
        """Append the rows' tokens, scan, select and gather: all but the attention of a layer.

        Returns the queries as the kernels take them and the scores of the targets, [R, H, blocks].
        """
        pages, kernels = self._memory.layers[inputs.layer], self._memory.kernels
        pages.append(kernels, token_rows(pages.shape, inputs), self._at)
        query = kernel_query(pages.shape, inputs.query)
        kernels.scan(query, pages.tiles, pages.true_scores, self._before)
        return query, self._select(inputs.layer, pages)

    def _select(self, layer: int, pages: OffloadedLayer) -> Tensor:
        """Move the pools towards their targets; the first step takes its own choice whole.

        Returns the scores of the targets, [R, H, blocks].
        """
        memory = self._memory
        scores = pages.target_scores
        own = [row for row, plan in enumerate(memory.plans) if plan.own_target or self._first]
        if own:
            scores = scores.clone()
            scores[own] = pages.true_scores[own]
        decide = scores
        if memory.steer is not None:
            decide = memory.steer(memory, layer, self.position, scores)
        for row, (plan, residents) in enumerate(zip(memory.plans, pages.residents, strict=True)):
            chosen = plan.rule.chosen_blocks
            cap = chosen if self._first else min(plan.rule.cap_blocks, chosen)
            memory.kernels.select(residents, decide[row], self._before, self._at, cap)
            memory.kernels.gather(residents, pages.host, pages.pages.row(row))
        pages.list_units(self.position)
        return scores

    def _report(self, inputs: LayerInput, pages: OffloadedLayer, scores: Tensor) -> None:
        """Compare what is attended with the true set, and measure the mass that it captures."""
        memory = self._memory
        attended = pages.attended(self.position)
        if memory.watch is not None:
            memory.watch(inputs.layer, self.position, scores, attended)
        counts = pages.counted()
        overlap = _overlap(pages.true_scores, attended, memory.plans, self.position)
        self._counts.append(torch.cat([counts, overlap[..., None]], dim=-1))
        self._attended.append(attended)
        store = memory.stores[inputs.layer]
        self._mass.append(_mass(store, inputs, attended, pages.shape.block_tokens))


class DraftRows:
    """Let drafts, at the next position, attend the units of their true rows and themselves."""

    def __init__(self, memory: PagedMemory, rows: Rows, true_rows: TrueRows) -> None:
        """Follow some of the true rows."""
        self._memory = memory
        self._rows = rows
        self._after = true_rows.position + 1
        self._at = memory.number(true_rows.position)
        self._next = memory.number(self._after)

    @property
    def orders(self) -> dict[int, Order]:
        """Return the orders by the drafts' queries."""
        return {
            layer: self._memory.order(pages.draft_scores[self._rows], self._after)
            for layer, pages in self._memory.layers.items()
        }

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]; keep the scores by the drafts' queries."""
        memory, layer, rows = self._memory, inputs.layer, self._rows
        if layer not in memory.layers:
            inputs = memory.seen(inputs)
            store = memory.stores[layer]
            with store.borrowed(inputs, rows, self._after):
                return attend(store, inputs, rows, self._after + 1)
        return self.paged(inputs)

    def paged(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output of a full-attention layer, [Hq, R, d].

        Rows without a draft write zeros where the next true token will lie.
        """
        memory, rows = self._memory, self._rows
        pages, kernels = memory.layers[inputs.layer], memory.kernels
        token = token_rows(pages.shape, inputs)
        tokens = token.new_zeros((len(memory.plans), *token.shape[1:]))
        tokens[rows] = token
        kernels.append(tokens, pages.pages.units, None, self._next)
        query = kernel_query(pages.shape, inputs.query)
        both = query.new_zeros((2, len(memory.plans), *query.shape[1:]))
        both[1, rows] = query
        kernels.scan(both[1], pages.tiles, pages.draft_scores, self._at)
        out = kernels.attend(
            both, pages.pages.units, pages.table, pages.counts, self._at, inputs.scaling
        )
        return model_output(out[1, rows], inputs)


@dataclass(eq=False)
class DenseMemory:
    """Hold rows that attend to everything, paged."""

    rows: int
    kernels: PageKernels
    layers: dict[int, DenseLayer]
    stores: dict[int, LayerStore]
    position: int

    def full_rows(self) -> FullRows:
        """Return the pass of a step."""
        return FullRows(self)


class FullRows:
    """Append the rows and let each attend all before it, and itself."""

    def __init__(self, memory: DenseMemory) -> None:
        """Take the next step."""
        self._memory = memory
        self._position = memory.position
        memory.position += 1

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        memory, inputs = self._memory, rounded_input(inputs)
        if inputs.layer not in memory.layers:
            store = memory.stores[inputs.layer]
            store.append(inputs.key, inputs.value)
            return attend(store, inputs, ALL, store.filled)
        layer = memory.layers[inputs.layer]
        query = kernel_query(layer.shape, inputs.query)
        at = torch.full((memory.rows,), self._position, dtype=torch.int32, device=query.device)
        memory.kernels.append(token_rows(layer.shape, inputs), layer.pages.units, None, at)
        out = memory.kernels.attend(
            query[None], layer.pages.units, layer.table, None, at, inputs.scaling
        )
        layer.complete(self._position)
        return model_output(out[0], inputs)


def _overlap(scores: Tensor, attended: Tensor, plans: Sequence[LoopPlan], position: int) -> Tensor:
    """Count the attended blocks that true scores would choose, int32 [R, H]."""
    rule = plans[0].rule
    candidates = scores[..., rule.sink_blocks : max(rule.last_candidate(position) + 1, 0)]
    best = torch.sort(candidates, dim=-1, descending=True, stable=True).indices
    read = attended[..., rule.sink_blocks :].gather(-1, best)
    chosen = torch.tensor([plan.rule.chosen_blocks for plan in plans], device=scores.device)
    inside = torch.arange(best.shape[-1], device=scores.device) < chosen[:, None, None]
    return (read & inside).sum(dim=-1, dtype=torch.int32)


def _mass(store: LayerStore, inputs: LayerInput, attended: Tensor, block_tokens: int) -> Tensor:
    """Return the share of full attention that lies on attended blocks, float64 [R, H]."""
    mask = attended.repeat_interleave(block_tokens, dim=-1)[..., : store.filled].transpose(0, 1)
    scores = store.scores(inputs.query * inputs.scaling, ALL, 0, store.filled)
    weights = torch.softmax(scores, dim=-1).masked_fill_(~mask[:, None], 0.0)
    return weights.sum(dim=-1).double().mean(dim=1).transpose(0, 1)
