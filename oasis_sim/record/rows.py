"""The rows that a trace holds: orders and masses of the true queries, orders of the draft rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.record.attention import RowsPass, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part, Parts
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.orders import (
    block_extremes,
    block_mass,
    joined_scores,
    listed_blocks,
    order_blocks,
)
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.trajectory import Trajectory
from oasis_sim.record.working_set import DraftWorkingSets, WorkingSetRule
from oasis_sim.trace import NO_BLOCK

Ids = NDArray[np.uint16]

_ROWS = 64
"""Rows that go through the model, or are ordered, together."""


def true_orders(path: Trajectory, layers: Sequence[int], options: RecordOptions) -> Ids:
    """Return the orders by the true queries, [T, L, H, N]."""
    found = [as_ids(layer_orders(path, layer, path.steps, options)) for layer in layers]
    return np.stack(found, axis=1)


def true_mass(
    path: Trajectory, layers: Sequence[int], options: RecordOptions, progress: ProgressCallback
) -> NDArray[np.float64] | None:
    """Return the attention mass of the true queries by block, [T, L, H, NB], if it is wanted."""
    if not options.mass:
        return None
    mass: list[NDArray[np.float64]] = []
    for done, layer in enumerate(layers):
        progress("mass", done, len(layers))
        weights = block_mass(
            path.queries[layer],
            path.store.keys(layer),
            path.positions,
            scaling=path.scalings[layer],
            block_tokens=options.block_tokens,
            span=path.spans[layer],
            join=options.mass_join,
        )
        mass.append(weights.cpu().numpy())
    progress("mass", len(layers), len(layers))
    return np.stack(mass, axis=1)


def layer_orders(path: Trajectory, layer: int, steps: int, options: RecordOptions) -> Tensor:
    """Return a layer's orders by the true queries of the first steps, int64 [steps, H, N]."""
    size = options.block_tokens
    low, high = block_extremes(path.store.keys(layer), size)
    found = []
    for start in range(0, steps, _ROWS):
        rows = slice(start, min(start + _ROWS, steps))
        listed = listed_blocks(path.positions[rows], low.shape[1], size, path.spans[layer])
        query = path.queries[layer][:, rows]
        scores = joined_scores(query, low, high, listed, options.bound_join, path.scalings[layer])
        found.append(order_blocks(scores, listed))
    return torch.cat(found)


@dataclass(frozen=True, eq=False)
class DraftRows:
    """Run a drafter's tokens through the whole model, each beside its true row, sparsely.

    The rows of one drafter are independent but for the working set, which a row takes from the
    row before in the same layer: they go through the model together, some at a time.
    """

    model: RecordedModel
    path: Trajectory
    options: RecordOptions
    layers: Sequence[int]
    parts: Parts

    def run(self, drafter: str, drafts: Sequence[int], progress: ProgressCallback) -> Ids:
        """Return the orders by the drafts' queries, uint16 [T, L, H, N]; one draft per step."""
        options, path = self.options, self.path
        rule = WorkingSetRule(
            block_tokens=options.block_tokens,
            chosen_blocks=options.chosen_blocks,
            sink_blocks=options.sink_blocks,
            recent_blocks=options.recent_blocks,
            bound_join=options.bound_join,
        )
        first = {
            layer: layer_orders(path, layer, 1, options)[0] for layer in range(self.model.layers)
        }
        sets = DraftWorkingSets(path.store, rule, first)
        stage = f"draft rows of {drafter}, blocks of {options.block_tokens}"
        orders: list[Ids] = []
        for start in range(0, path.steps, _ROWS):
            progress(stage, start, path.steps)
            rows = range(start, min(start + _ROWS, path.steps))
            part = self.parts.get(
                f"rows-{drafter}-{options.block_tokens}-{start:08d}",
                partial(self._batch, sets, rows, drafts),
            )
            orders.append(part["orders"].numpy())
            sets.resume({layer: part[f"last.{layer}"] for layer in range(self.model.layers)})
        progress(stage, path.steps, path.steps)
        return np.concatenate(orders)

    def _batch(self, sets: DraftWorkingSets, rows: range, drafts: Sequence[int]) -> Part:
        """Run some rows; return their orders, and the last one of every layer."""
        positions = self.path.positions[rows.start : rows.stop] + 1
        sets.start_batch(positions)
        tokens = torch.tensor(drafts[rows.start : rows.stop])
        run_pass(self.model.module, tokens, positions, RowsPass(self.path.store, positions, sets))
        orders = np.stack([as_ids(sets.orders[layer]) for layer in self.layers], axis=1)
        last = {f"last.{layer}": order[-1] for layer, order in sets.orders.items()}
        return {"orders": torch.from_numpy(orders), **last}


def as_ids(orders: Tensor) -> Ids:
    """Return orders with the trace's mark for no block, uint16."""
    ids = np.asarray(torch.where(orders < 0, NO_BLOCK, orders).cpu())
    return ids.astype(np.uint16)
