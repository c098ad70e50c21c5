"""The rows of a recording over paged memory: true tokens from a trajectory, drafts run sparsely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_exec.model.rows import DraftRows, PagedMemory, TrueRows
from oasis_sim.quality.rows import rounded_input
from oasis_sim.quality.store import ALL
from oasis_sim.record.attention import KeyValueStore, LayerInput, RowsPass, run_pass
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.rows import layer_orders
from oasis_sim.record.trajectory import Trajectory
from oasis_sim.record.working_set import DraftWorkingSets, WorkingSetRule
from oasis_sim.trace.trace import Order


class Replay:
    """Go through a trajectory's steps: true tokens come from the store, drafts run sparsely."""

    def __init__(
        self,
        memory: PagedMemory,
        model: RecordedModel,
        path: Trajectory,
        drafts: Mapping[str, Sequence[int]],
        options: RecordOptions,
    ) -> None:
        """Begin after the prompt that ``memory`` holds; one row per drafter."""
        self._model, self._path, self._options = model, path, options
        self._drafts, self._memory = dict(drafts), memory
        rule = WorkingSetRule(
            options.block_tokens,
            options.chosen_blocks,
            options.sink_blocks,
            options.recent_blocks,
            options.bound_join,
        )
        windows = [layer for layer, span in enumerate(path.spans) if span is not None]
        first = {layer: layer_orders(path, layer, 1, options)[0] for layer in windows}
        self._windows = DraftWorkingSets(path.store, rule, first)

    def run(self, layers: Sequence[int], progress: ProgressCallback) -> Part:
        """Return the orders of some layers, int64 [T, L, H, N]: ``true`` and ``draft.NAME``."""
        path = self._path
        stage = f"rows by the kernels, blocks of {self._options.block_tokens}"
        blocks = (path.prompt_tokens + path.steps) // self._options.block_tokens
        windows = {
            layer: layer_orders(path, layer, path.steps, self._options).cpu()
            for layer in layers
            if path.spans[layer] is not None
        }
        true: list[Tensor] = []
        drafted: list[Tensor] = []
        for step in range(path.steps):
            progress(stage, step, path.steps)
            position = path.prompt_tokens + step
            done = TrueRows(self._memory, position)
            self._true_tokens(done)
            own = {layer: order[:1] for layer, order in _tensors(done.orders).items()}
            windowed = {layer: order[None, step] for layer, order in windows.items()}
            true.append(_stacked({**own, **windowed}, layers, blocks)[0])
            if self._drafts:
                drafted.append(_stacked(self._draft_orders(step, done), layers, blocks))
        progress(stage, path.steps, path.steps)
        found = {"true": torch.stack(true)}
        for row, name in enumerate(self._drafts):
            found[f"draft.{name}"] = torch.stack([orders[row] for orders in drafted])
        return found

    def _true_tokens(self, done: TrueRows) -> None:
        """Append the step's true token to every row, and make its working set resident."""
        path, rows, position = self._path, len(self._memory.plans), done.position
        step = position - path.prompt_tokens
        for layer, pages in self._memory.layers.items():
            query, key, value = (
                part[:, at, None].expand(-1, rows, -1)
                for part, at in (
                    (path.queries[layer], step),
                    (path.store.keys(layer), position),
                    (path.store.values(layer), position),
                )
            )
            done.prepare(LayerInput(layer, query, key, value, path.scalings[layer], None))
            pages.complete(position)

    def _draft_orders(self, step: int, done: TrueRows) -> dict[int, Tensor]:
        """Run the step's drafts; return the orders by their queries by layer, [R, H, N]."""
        after = done.position + 1
        tokens = torch.tensor([drafts[step] for drafts in self._drafts.values()])
        positions = torch.full((len(tokens),), after, device=self._memory.device)
        self._windows.start_batch(positions)
        rows = RecordedDrafts(self._memory, done, self._path.store, positions, self._windows)
        run_pass(self._model.module, tokens, positions, rows)
        self._memory.predict(list(range(len(tokens))), rows.paged_rows)
        windowed = {layer: order.cpu() for layer, order in self._windows.orders.items()}
        return {**_tensors(rows.paged_rows.orders), **windowed}


class RecordedDrafts:
    """Let drafts attend resident units in full-attention layers and the store in windows."""

    def __init__(
        self,
        memory: PagedMemory,
        done: TrueRows,
        store: KeyValueStore,
        positions: Tensor,
        windows: DraftWorkingSets,
    ) -> None:
        """Follow the true rows of a step."""
        self.paged_rows = DraftRows(memory, ALL, done)
        self._windowed = RowsPass(store, positions, windows)

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        if inputs.span is None:
            return self.paged_rows.paged(inputs)
        return self._windowed.attend(rounded_input(inputs))


def _stacked(orders: Mapping[int, Tensor], layers: Sequence[int], blocks: int) -> Tensor:
    """Return orders of layers, [R, H, N] each, side by side and as wide as the trace's."""
    found = []
    for layer in layers:
        order = orders[layer]
        wide = torch.full((*order.shape[:2], blocks), -1, dtype=torch.int64)
        wide[..., : order.shape[2]] = order
        found.append(wide)
    return torch.stack(found, dim=1)


def _tensors(orders: Mapping[int, Order]) -> dict[int, Tensor]:
    return {layer: torch.from_numpy(order.astype(np.int64)) for layer, order in orders.items()}
