"""The passes of one sparse step, layer by layer, for all rows at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.quality.drift import QueryDrift
from oasis_sim.quality.pools import Counts, PoolStep, RowPools
from oasis_sim.quality.quotas import LayerQuotas
from oasis_sim.quality.start import Start, rounded
from oasis_sim.quality.store import ALL, LayerBounds, LayerStore, Rows, attend, attend_masked
from oasis_sim.record.attention import LayerInput
from oasis_sim.record.orders import order_blocks
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.trace import NO_BLOCK, Order


@dataclass(eq=False)
class Memory:
    """Hold what the rows keep from step to step: keys and values, and the pools.

    By layer; bounds and pools of full-attention layers only. ``targets`` are the orders, uint16
    [R, H, blocks], that were predicted for the next step; rows of ``own_targets`` take the order
    by their step's own query instead. With ``host_rule`` the blocks that it may choose have been on
    a host that keeps 8 bits. ``exact`` are extreme keys to compare the index with; ``always``,
    [H, blocks], are blocks that are attended and never chosen; ``drift`` corrects predictions;
    ``rehearsed`` are queries, by layer, that choose in place of the step's own.
    """

    start: Start
    stores: dict[int, LayerStore]
    bounds: dict[int, LayerBounds]
    pools: dict[int, RowPools]
    own_targets: list[int] = field(default_factory=list)
    host_rule: ResidencyRule | None = None
    exact: dict[int, LayerBounds] = field(default_factory=dict)
    always: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    drift: QueryDrift | None = None
    quotas: LayerQuotas = field(default_factory=LayerQuotas)
    targets: dict[int, Order] = field(default_factory=dict)
    rehearsed: dict[int, Tensor] = field(default_factory=dict)

    def target(self, inputs: LayerInput, own: Order, position: int) -> Order:
        """Return the orders that the pools of a layer move towards; ``own`` are the step's."""
        layer = inputs.layer
        if layer in self.rehearsed:
            query = self.rehearsed.pop(layer)
            return self.order(self.seen(replace(inputs, query=query)), position)
        corrected = None if self.drift is None else self.drift.corrected(layer, inputs.query)
        if layer not in self.targets:
            return own
        known = self.targets[layer]
        known[self.own_targets, :, : own.shape[-1]] = own[self.own_targets]
        if corrected is not None:
            known[corrected, : own.shape[-1]] = own[corrected]
        return known

    def seen(self, inputs: LayerInput) -> LayerInput:
        """Return a layer's input as the study keeps it: in 16 bits when that is asked for."""
        return rounded_input(inputs) if self.start.kv_16bit else inputs

    def fetch_in_8bit(self, layer: int, position: int) -> None:
        """Round what may be chosen at a position, if it has been on a host that keeps 8 bits."""
        if self.host_rule is not None:
            first, last = self.host_rule.sink_blocks, self.host_rule.last_candidate(position)
            self.stores[layer].round_to_8bit(first, last + 1)

    def full_rows(self) -> FullRows:
        """Return the pass of a step with full attention."""
        return FullRows(self)

    def true_rows(self, position: int) -> TrueRows:
        """Return the pass of a step's true rows."""
        return TrueRows(self, position)

    def draft_rows(self, rows: Rows, true_rows: TrueRows) -> DraftRows:
        """Return the pass of the drafts of some true rows."""
        return DraftRows(self, rows, true_rows)

    def predict(self, rows: list[int], chooser: TrueRows | DraftRows) -> None:
        """Take the next targets of some rows from a pass: of drafts, or of all true rows."""
        for layer, orders in chooser.orders.items():
            if layer not in self.targets:
                self.targets[layer] = np.full(self.pools[layer].shape, NO_BLOCK, dtype=np.uint16)
            chosen = orders[rows] if isinstance(chooser, TrueRows) else orders
            self.targets[layer][rows, :, : orders.shape[-1]] = chosen

    def order(self, inputs: LayerInput, position: int, rows: Rows = ALL) -> Order:
        """Order the complete blocks at a position by the rows' queries, uint16 [R, H, N]."""
        layer, blocks = inputs.layer, position // self.start.block_tokens
        return self._order_by(self.bounds[layer], inputs, blocks, rows)

    def alike(self, inputs: LayerInput, order: Order, position: int) -> Counts | None:
        """Return how many chosen blocks exact extreme keys choose too; None: not compared."""
        layer, blocks = inputs.layer, position // self.start.block_tokens
        if layer not in self.exact:
            return None
        exact = self._order_by(self.exact[layer], inputs, blocks, ALL)
        return self.pools[layer].alike(position, order, exact)

    def _order_by(self, bounds: LayerBounds, inputs: LayerInput, blocks: int, rows: Rows) -> Order:
        layer = inputs.layer
        scores = bounds.scores(inputs, self.stores[layer], rows, blocks)
        listed = scores.new_ones((len(scores), blocks), dtype=torch.bool)
        order = np.asarray(order_blocks(scores, listed)).astype(np.uint16)
        if layer in self.always:
            heads = np.arange(order.shape[1])[None, :, None]
            order[self.always[layer][heads, order]] = NO_BLOCK
        return order

    def by_block(self, shares: Tensor) -> NDArray[np.float64]:
        """Return the sums of shares by token [R, H, tokens] over blocks, [R, H, B]."""
        size = self.start.block_tokens
        wide = torch.nn.functional.pad(shares.double(), (0, -shares.shape[-1] % size))
        return np.asarray(wide.unflatten(-1, (-1, size)).sum(dim=-1))

    def token_mask(self, attended: NDArray[np.bool_], tokens: int) -> Tensor:
        """Return which of the first tokens lie in blocks [R, H, B], bool [H, R, tokens]."""
        wide = torch.from_numpy(attended).repeat_interleave(self.start.block_tokens, dim=-1)
        return wide[..., :tokens].transpose(0, 1)


class FullRows:
    """Append the rows and let each attend all before it, and itself."""

    def __init__(self, memory: Memory) -> None:
        """Go on after what the memory holds."""
        self._memory = memory

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        inputs = self._memory.seen(inputs)
        store = self._memory.stores[inputs.layer]
        store.append(inputs.key, inputs.value)
        return attend(store, inputs, ALL, store.filled)


class TrueRows:
    """Append the rows, move the pools, attend what they hold."""

    def __init__(self, memory: Memory, position: int) -> None:
        """Take the step at a position."""
        self._memory = memory
        self.position = position
        self.orders: dict[int, Order] = {}
        self.moved: dict[int, PoolStep] = {}
        self.mass: dict[int, NDArray[np.float64]] = {}
        self.alike: dict[int, Counts] = {}

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        memory, layer = self._memory, inputs.layer
        inputs = memory.seen(inputs)
        store = memory.stores[layer]
        store.append(inputs.key, inputs.value)
        if inputs.span is not None:
            return attend(store, inputs, ALL, store.filled)
        order = self.orders[layer] = memory.order(inputs, self.position)
        memory.fetch_in_8bit(layer, self.position)
        if (alike := memory.alike(inputs, order, self.position)) is not None:
            self.alike[layer] = alike
        target = memory.target(inputs, order, self.position)
        pools = memory.pools[layer]
        moved = pools.advance(self.position, order, target, memory.quotas.of(layer, pools.cap))
        memory.quotas.note(layer, moved.needed)
        if layer in memory.always:
            more = memory.always[layer][:, : moved.attended.shape[-1]]
            moved = replace(moved, attended=moved.attended | more)
        self.moved[layer] = moved
        mask = memory.token_mask(moved.attended, store.filled)
        watched = pools.shares is not None
        out, mass, read = attend_masked(store, inputs, ALL, mask, by_token=watched)
        if read is not None:
            pools.observe(memory.by_block(read))
        self.mass[layer] = np.asarray(mass)
        return out


class DraftRows:
    """Let drafts, at the next position, attend the blocks of their true rows and themselves."""

    def __init__(self, memory: Memory, rows: Rows, true_rows: TrueRows) -> None:
        """Follow some of the true rows."""
        self._memory = memory
        self._rows = rows
        self._true_rows = true_rows
        self.orders: dict[int, Order] = {}

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]; keep the orders by the drafts' queries."""
        memory, layer = self._memory, inputs.layer
        inputs = memory.seen(inputs)
        store, after = memory.stores[layer], self._true_rows.position + 1
        with store.borrowed(inputs, self._rows, after):
            if inputs.span is not None:
                return attend(store, inputs, self._rows, after + 1)
            self.orders[layer] = memory.order(inputs, after, self._rows)
            attended = self._true_rows.moved[layer].attended[self._rows]
            mask = memory.token_mask(attended, after)
            itself = torch.ones(*mask.shape[:2], 1, dtype=torch.bool)
            mask = torch.cat([mask, itself], dim=2)
            return attend_masked(store, inputs, self._rows, mask)[0]


class WholeMemory(Protocol):
    """Keep all keys and values of the rows."""

    stores: dict[int, LayerStore]

    def seen(self, inputs: LayerInput) -> LayerInput:
        """Return a layer's input as it is kept."""
        ...


class DrafterRows:
    """Let rows of a drafter at the newest position attend all before it, and themselves."""

    def __init__(self, memory: WholeMemory, rows: Rows, position: int) -> None:
        """Look on from a position without leaving anything behind."""
        self._memory = memory
        self._rows = rows
        self._position = position

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        inputs = self._memory.seen(inputs)
        store = self._memory.stores[inputs.layer]
        with store.borrowed(inputs, self._rows, self._position):
            return attend(store, inputs, self._rows, self._position + 1)


def rounded_input(inputs: LayerInput) -> LayerInput:
    """Return a layer's input with query, key and value as bfloat16 keeps them."""
    parts = (rounded(part) for part in (inputs.query, inputs.key, inputs.value))
    return replace(inputs, **dict(zip(("query", "key", "value"), parts, strict=True)))
