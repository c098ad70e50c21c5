"""The backend of `oasis-sim record --device cuda`: decoded rows attend and order by the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_exec.model.backend import MakeKernels, check_join, check_rules
from gpu_exec.model.exchange import kernel_query, model_output, token_rows
from gpu_exec.model.kernels import CudaKernels, PageKernels
from gpu_exec.model.memory import DenseLayer, OffloadedLayer, always_slots
from gpu_exec.model.page import TILE_TOKENS, PageShape
from gpu_exec.model.recorded_rows import Replay
from gpu_exec.model.rows import PagedMemory
from oasis_sim.quality.backend import LoopPlan
from oasis_sim.quality.rows import rounded_input
from oasis_sim.quality.start import rounded
from oasis_sim.record.attending import Orders
from oasis_sim.record.attention import CausalPass, KeyValueStore, LayerInput
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Part, Parts
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.rows import as_ids
from oasis_sim.record.trajectory import Trajectory
from oasis_sim.residency.predict import DRAFT
from oasis_sim.residency.rule import ResidencyRule


class PagedRecording:
    """Run the decoded rows of a recording through the kernels.

    True rows append to paged memory and attend all of it. Draft rows attend what selection and
    gather made resident by the scan of the row before; true queries are scanned beside them.
    Prefill, sliding windows and attention mass stay with the library.
    """

    def __init__(
        self, name: str, query_heads: int, make_kernels: MakeKernels = CudaKernels
    ) -> None:
        """Name who computes."""
        self._name = name
        self._query_heads = query_heads
        self._make = make_kernels
        self.kernels: list[PageKernels] = []

    def header(self) -> dict[str, Any]:
        """Say who attends and orders."""
        return {"attention": self._name}

    def check(self, model: RecordedModel, options: RecordOptions) -> None:
        """Raise InputError for shapes, rules and joins that the kernels do not do."""
        check_join(options.bound_join)
        check_rules([working_set(options)])
        self._shape(model.kv_heads, model.head_dim, 1, options.block_tokens, 1, 1)

    def prefilled(self, store: KeyValueStore) -> None:
        """Round keys and values to the 16 bits in which they are kept."""
        for layer in range(store.layers):
            for part in (store.keys(layer), store.values(layer)):
                part.copy_(rounded(part))

    def decoder(self, store: KeyValueStore) -> PagedCausal:
        """Return the pass of the next decoded tokens."""
        return PagedCausal(self, store)

    def orders(
        self,
        model: RecordedModel,
        path: Trajectory,
        layers: Sequence[int],
        drafts: Mapping[str, Sequence[int]],
        options: RecordOptions,
        parts: Parts,
        progress: ProgressCallback,
    ) -> Orders:
        """Go through the steps once more, all drafters side by side."""

        def replay() -> Part:
            memory = self.memory(path, working_set(options), max(len(drafts), 1))
            return Replay(memory, model, path, drafts, options).run(layers, progress)

        part = parts.get(f"rows-paged-{options.block_tokens}", replay)
        found = {name: as_ids(part[f"draft.{name}"]) for name in drafts}
        return as_ids(part["true"]), found

    def dense_layer(self, keys: Tensor, values: Tensor, capacity: int) -> DenseLayer:
        """Return a layer of one row, all of whose blocks are resident."""
        blocks = capacity // TILE_TOKENS + 2
        shape = self._shape(len(keys), keys.shape[2], 1, TILE_TOKENS, blocks, blocks)
        return DenseLayer(shape, keys, values, keys.device)

    def memory(self, path: Trajectory, rule: ResidencyRule, rows: int) -> PagedMemory:
        """Return the memory of draft rows after a path's prompt; windows are not in it."""
        store, tokens, size = path.store, path.prompt_tokens, rule.block_tokens
        heads, _, dim = store.keys(0).shape
        blocks = (tokens + path.steps) // size + 2
        shape = self._shape(heads, dim, rows, size, blocks, rule.pool_blocks + always_slots(rule))
        device, rules = store.keys(0).device, [rule] * rows
        layers = {
            layer: OffloadedLayer(
                shape, rules, store.keys(layer)[:, :tokens], store.values(layer)[:, :tokens], device
            )
            for layer, span in enumerate(path.spans)
            if span is None
        }
        plans = [LoopPlan(rule, DRAFT)] * rows
        return PagedMemory(plans, self.make_kernels(shape, device), layers, {}, device)

    def make_kernels(self, shape: PageShape, device: Any) -> PageKernels:
        """Return kernels for a shape, and remember them."""
        self.kernels.append(self._make(shape, device))
        return self.kernels[-1]

    def _shape(
        self, heads: int, head_dim: int, rows: int, block_tokens: int, blocks: int, slots: int
    ) -> PageShape:
        group = self._query_heads // heads
        return PageShape(rows, heads, group, head_dim, block_tokens, blocks, slots)


def open_recording(model: RecordedModel) -> PagedRecording:
    """Return the backend of a model on a GPU.

    Raises GpuUnavailable where the kernels do not run.
    """
    from gpu_exec.kernels.memory import require_gpu

    require_gpu()
    name = f"decoded rows by the kernels of {model.device}, bfloat16 queries, keys and values"
    return PagedRecording(name, model.query_heads)


def working_set(options: RecordOptions) -> ResidencyRule:
    """Return the rule of draft rows: a pool of the chosen blocks, and no cap."""
    chosen = options.chosen_blocks
    return ResidencyRule(
        chosen, chosen, chosen, options.sink_blocks, options.recent_blocks, options.block_tokens
    )


class PagedCausal(CausalPass):
    """Append decoded tokens to the store and to pages; each attends all pages by the kernels."""

    def __init__(self, backend: PagedRecording, store: KeyValueStore) -> None:
        """Go on after what the store holds."""
        super().__init__(store, keep_queries=True)
        self._backend = backend
        self._layers: dict[int, DenseLayer] = {}
        self._kernels: PageKernels | None = None

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output of one token, [Hq, 1, d]."""
        inputs = rounded_input(inputs)
        if inputs.span is not None:
            return super().attend(inputs)
        pages, kernels = self._pages(inputs.layer)
        position = self.store.filled(inputs.layer)
        self.store.append(inputs.layer, inputs.key, inputs.value)
        self.queries[inputs.layer] = inputs.query
        query = kernel_query(pages.shape, inputs.query)
        at = torch.full((1,), position, dtype=torch.int32, device=query.device)
        kernels.append(token_rows(pages.shape, inputs), pages.pages.units, None, at)
        out = kernels.attend(query[None], pages.pages.units, pages.table, None, at, inputs.scaling)
        pages.complete(position)
        return model_output(out[0], inputs)

    def _pages(self, layer: int) -> tuple[DenseLayer, PageKernels]:
        """Return a layer's pages, filled from the store when it is met first."""
        if layer not in self._layers:
            keys, values = self.store.keys(layer), self.store.values(layer)
            pages = self._backend.dense_layer(keys, values, self.store.capacity)
            self._layers[layer] = pages
            if self._kernels is None:
                self._kernels = self._backend.make_kernels(pages.shape, keys.device)
        assert self._kernels is not None
        return self._layers[layer], self._kernels
