"""Who attends and orders while a model is recorded: the interface, and the library's attention.

``gpu_exec.model.recording`` has the same interface over GPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from oasis_sim.record.attention import CausalPass, KeyValueStore
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.checkpoint import Parts
from oasis_sim.record.decoding import DecodeBackend
from oasis_sim.record.options import RecordOptions
from oasis_sim.record.progress import ProgressCallback
from oasis_sim.record.rows import DraftRows, Ids, true_orders
from oasis_sim.record.trajectory import Trajectory

Orders = tuple[Ids, dict[str, Ids]]
"""Orders by the true queries, and by each drafter's, uint16 [T, L, H, N]."""


class RecordBackend(DecodeBackend, Protocol):
    """Attend decoded rows and order their blocks."""

    def header(self) -> dict[str, Any]:
        """Return what a recording says of who attended."""
        ...

    def check(self, model: RecordedModel, options: RecordOptions) -> None:
        """Raise InputError for a model or options that are not for it."""
        ...

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
        """Order the blocks of some layers by the true queries and by each drafter's rows."""
        ...


class LibraryAttention:
    """Attend as the library does, in the model's precision; order in float64."""

    def header(self) -> dict[str, Any]:
        """Say nothing: this is how recordings are made."""
        return {}

    def check(self, model: RecordedModel, options: RecordOptions) -> None:
        """Take every model and all options."""

    def prefilled(self, store: KeyValueStore) -> None:
        """Leave keys and values as they are."""

    def decoder(self, store: KeyValueStore) -> CausalPass:
        """Return a pass over the store."""
        return CausalPass(store, keep_queries=True)

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
        """Order by all true queries at once, then run each drafter's rows, many at a time."""
        rows = DraftRows(model, path, options, layers, parts)
        orders = true_orders(path, layers, options)
        return orders, {name: rows.run(name, drafts[name], progress) for name in drafts}
