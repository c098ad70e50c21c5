"""One step of a sparse decode, layer by layer: the true row and the draft row behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.quality.pools import LayerPools
from oasis_sim.quality.start import BlockBounds
from oasis_sim.record.attention import KeyValueStore, LayerInput, masked_attention, visible
from oasis_sim.record.orders import bound_scores, listed_blocks, order_blocks
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.trace import NO_BLOCK, Order


@dataclass(eq=False)
class LoopLog:
    """Collect what the steps did; L counts full-attention layers.

    By step: counts int32 [L, H], captured attention mass float64 [L, H], orders uint16
    [L, H, N] by the true query and by the draft's; draft tokens.
    """

    needed: list[NDArray[np.int32]] = field(default_factory=list)
    admitted: list[NDArray[np.int32]] = field(default_factory=list)
    overlap: list[NDArray[np.int32]] = field(default_factory=list)
    mass: list[NDArray[np.float64]] = field(default_factory=list)
    use_order: list[Order] = field(default_factory=list)
    draft_order: list[Order] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Memory:
    """Hold what a run keeps from step to step: keys and values, pools, the next targets."""

    rule: ResidencyRule
    store: KeyValueStore
    bounds: BlockBounds
    pools: dict[int, LayerPools]
    targets: dict[int, Order] = field(default_factory=dict)

    def order(self, inputs: LayerInput, position: int) -> Order:
        """Order the blocks by a row's query, uint16 [H, N]."""
        low, high = self.bounds.of(inputs.layer, self.store.keys(inputs.layer))
        listed = listed_blocks(
            torch.tensor([position]), low.shape[1], self.rule.block_tokens, inputs.span
        )
        order = order_blocks(bound_scores(inputs.query, low, high), listed)[0]
        return np.asarray(torch.where(order < 0, NO_BLOCK, order)).astype(np.uint16)

    def tokens_of(self, blocks: NDArray[np.bool_], tokens: int) -> Tensor:
        """Return which of the first tokens lie in the blocks of each head, bool [H, tokens]."""
        wide = torch.from_numpy(blocks).repeat_interleave(self.rule.block_tokens, dim=-1)
        return wide[:, :tokens]


class TrueRow:
    """Attention of one true row: append, move the pools, attend what they hold."""

    def __init__(self, memory: Memory, position: int) -> None:
        self._memory = memory
        self.position = position
        self.orders: dict[int, Order] = {}
        self.attended: dict[int, NDArray[np.bool_]] = {}
        self._counts: dict[int, tuple[NDArray[np.int32], ...]] = {}
        self._mass: dict[int, NDArray[np.float64]] = {}

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, 1, d]."""
        memory, layer = self._memory, inputs.layer
        store = memory.store
        store.append(layer, inputs.key, inputs.value)
        keys, values = store.keys(layer), store.values(layer)
        if inputs.span is not None:
            rows, columns = torch.tensor([self.position]), torch.arange(keys.shape[1])
            return masked_attention(inputs, keys, values, visible(rows, columns, inputs.span))
        order = self.orders[layer] = memory.order(inputs, self.position)
        target = memory.targets.get(layer, order)
        done = memory.pools[layer].advance(self.position, order, target)
        self.attended[layer] = done.attended
        self._counts[layer] = (done.needed, done.admitted, done.overlap)
        mask = memory.tokens_of(done.attended, keys.shape[1])
        self._mass[layer] = captured_mass(inputs, keys, mask)
        group = inputs.query.shape[0] // keys.shape[0]
        return masked_attention(inputs, keys, values, mask[:, None].repeat_interleave(group, dim=0))

    def write(self, log: LoopLog, layers: tuple[int, ...]) -> None:
        """Add this step to a log."""
        counts = np.array([self._counts[layer] for layer in layers], dtype=np.int32)
        log.needed.append(counts[:, 0])
        log.admitted.append(counts[:, 1])
        log.overlap.append(counts[:, 2])
        log.mass.append(np.stack([self._mass[layer] for layer in layers]))
        log.use_order.append(np.stack([self.orders[layer] for layer in layers]))


class DraftRow:
    """Let a draft row attend the blocks of its true row; keep the orders by its query."""

    def __init__(self, memory: Memory, true_row: TrueRow) -> None:
        self._memory = memory
        self._true_row = true_row
        self.orders: dict[int, Order] = {}

    def choose(self, inputs: LayerInput) -> Tensor:
        """Return which tokens of the store the row may attend, bool [H, 1, S]."""
        heads, tokens = inputs.key.shape[0], self._memory.store.filled(inputs.layer)
        if inputs.span is not None:
            return torch.ones(heads, 1, tokens, dtype=torch.bool)
        self.orders[inputs.layer] = self._memory.order(inputs, self._true_row.position + 1)
        return self._memory.tokens_of(self._true_row.attended[inputs.layer], tokens)[:, None]


def captured_mass(inputs: LayerInput, keys: Tensor, mask: Tensor) -> NDArray[np.float64]:
    """Return the share of full attention that lies on the mask's tokens, float64 [H].

    Softmax attention of the one query [Hq, 1, d] over all keys [H, S, d], mean over each group.
    """
    grouped = inputs.query.reshape(keys.shape[0], -1, keys.shape[2])
    scores = (grouped @ keys.transpose(1, 2)).float() * inputs.scaling
    weights = torch.softmax(scores, dim=-1).mean(dim=1)
    captured = torch.where(mask, weights, 0.0).sum(dim=-1, dtype=torch.float64)
    return np.asarray(captured)
