"""The sparse working set of draft rows: what each draft's query predicts and its row attends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oasis_sim.record.attention import KeyValueStore, LayerInput
from oasis_sim.record.orders import (
    block_extremes,
    joined_scores,
    listed_blocks,
    order_blocks,
)


@dataclass(frozen=True)
class WorkingSetRule:
    """Say which blocks a draft row attends: chosen ones, the first (sink) and the newest."""

    block_tokens: int
    chosen_blocks: int
    sink_blocks: int
    recent_blocks: int
    bound_join: str = "max"


class DraftWorkingSets:
    """Order blocks by each draft row's query; let the row attend what the row before predicted.

    Row s sits at position p + 1, beside the true row of step s at p, and attends that row's
    working set: the best blocks of the order that row s - 1 predicted, the sink blocks and the
    newest blocks at p. The first row attends by ``first_orders``, the true order of step 0. Rows
    may come in batches; the last prediction of a layer is carried over. No pool beyond the
    chosen blocks and no cap: the set is the prediction itself.
    """

    def __init__(
        self, store: KeyValueStore, rule: WorkingSetRule, first_orders: Mapping[int, Tensor]
    ) -> None:
        """Start before row 0; ``first_orders`` maps a layer to int64 [H, N]."""
        self._store = store
        self._rule = rule
        self._previous = dict(first_orders)
        self._positions = torch.empty(0, dtype=torch.int64)
        self.orders: dict[int, Tensor] = {}

    def start_batch(self, positions: Tensor) -> None:
        """Announce the positions of the next rows, int64 [R]."""
        self._positions = positions
        self.orders = {}

    def resume(self, last_orders: Mapping[int, Tensor]) -> None:
        """Go on after rows whose last orders, by layer, are given; int64 [H, N]."""
        for layer, order in last_orders.items():
            self._previous[layer] = order.to(self._previous[layer].device)

    def choose(self, inputs: LayerInput) -> Tensor:
        """Record the rows' orders, int64 [R, H, N]; return what they attend, bool [H, R, S]."""
        size = self._rule.block_tokens
        keys = self._store.keys(inputs.layer)
        low, high = block_extremes(keys, size)
        listed = listed_blocks(self._positions, low.shape[1], size, inputs.span)
        join = self._rule.bound_join
        scores = joined_scores(inputs.query, low, high, listed, join, inputs.scaling)
        orders = order_blocks(scores, listed)
        self.orders[inputs.layer] = orders
        predicted = torch.cat([self._previous[inputs.layer][None], orders[:-1]])
        self._previous[inputs.layer] = orders[-1]
        if inputs.span is not None:
            # A sliding window is never offloaded: it is there as a whole.
            return torch.ones(
                keys.shape[0], len(orders), keys.shape[1], dtype=torch.bool, device=keys.device
            )
        blocks = attended_blocks(predicted, self._positions - 1, self._rule)
        tokens = blocks.repeat_interleave(size, dim=-1)[..., : keys.shape[1]]
        return tokens.transpose(0, 1)


def attended_blocks(orders: Tensor, positions: Tensor, rule: WorkingSetRule) -> Tensor:
    """Return the blocks attended at positions p by given orders, bool [R, H, N + 1].

    orders int64 [R, H, N] (-1 = none), positions int64 [R]. Candidates are blocks
    sink .. p // b - recent; the first ``chosen_blocks`` of an order among them are taken.
    """
    active = torch.div(positions, rule.block_tokens, rounding_mode="floor")
    newest = active - rule.recent_blocks + 1
    candidate = (orders >= rule.sink_blocks) & (orders < newest[:, None, None])
    taken = candidate & (candidate.cumsum(dim=-1) <= rule.chosen_blocks)
    rows, heads, blocks = orders.shape
    # Column N takes what is not chosen; it is overwritten by the newest blocks below.
    chosen = torch.zeros(rows, heads, blocks + 1, dtype=torch.bool, device=orders.device)
    chosen.scatter_(2, torch.where(taken, orders, blocks), True)
    chosen[:, :, blocks] = False
    ids = torch.arange(blocks + 1, device=orders.device)
    always = (ids[None, :] < rule.sink_blocks) | (ids[None, :] >= newest[:, None])
    return chosen | always[:, None, :]
