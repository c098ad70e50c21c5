"""The state after prefill, from which every run of a study decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.record.attention import KeyValueStore
from oasis_sim.record.orders import block_extremes
from oasis_sim.record.trajectory import Trajectory


class BlockBounds:
    """Keep the extreme keys of complete blocks; each block is looked at once."""

    def __init__(
        self, block_tokens: int, known: Mapping[int, tuple[Tensor, Tensor]] | None = None
    ) -> None:
        """Start with what is known by layer: minimum and maximum keys, [H, N, d] each."""
        self._block_tokens = block_tokens
        self._known = dict(known or {})

    def copy(self) -> BlockBounds:
        """Return bounds that go on from here on their own."""
        return BlockBounds(self._block_tokens, self._known)

    def of(self, layer: int, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the extremes of all complete blocks of a layer's keys so far, [H, S, d]."""
        known = self._known.get(layer)
        done = 0 if known is None else known[0].shape[1]
        if known is None or keys.shape[1] // self._block_tokens > done:
            low, high = block_extremes(keys[:, done * self._block_tokens :], self._block_tokens)
            if known is not None:
                low = torch.cat([known[0], low], dim=1)
                high = torch.cat([known[1], high], dim=1)
            known = self._known[layer] = (low, high)
        return known


@dataclass(frozen=True, eq=False)
class Start:
    """Hold a prompt's keys and values, which no run changes, and what its layers see."""

    store: KeyValueStore
    bounds: BlockBounds
    prompt: tuple[int, ...]
    room: int  # tokens that a run may add
    spans: tuple[int | None, ...]
    kv_heads: int

    @classmethod
    def after_prompt(cls, path: Trajectory, block_tokens: int) -> Start:
        """Keep the prompt of a trajectory.

        Raises InputError when no layer attends to the whole context.
        """
        if all(span is not None for span in path.spans):
            raise InputError(
                "every layer attends to a sliding window only: there is nothing to offload",
                field="sliding_window",
                fix="use a model with full-attention layers",
            )
        store = _copy(path.store, len(path.spans), path.prompt_tokens, 0)
        bounds = BlockBounds(block_tokens)
        for layer, span in enumerate(path.spans):
            if span is None:
                bounds.of(layer, store.keys(layer))
        return cls(
            store=store,
            bounds=bounds,
            prompt=path.tokens[: path.prompt_tokens],
            room=path.steps,
            spans=path.spans,
            kv_heads=int(store.keys(0).shape[0]),
        )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Return the layers that attend to the whole context: those that are offloaded."""
        return tuple(layer for layer, span in enumerate(self.spans) if span is None)

    def fork(self) -> KeyValueStore:
        """Return a store of one run: the prompt, and room for what it decodes."""
        return _copy(self.store, len(self.spans), len(self.prompt), self.room)


def _copy(store: KeyValueStore, layers: int, tokens: int, room: int) -> KeyValueStore:
    """Return a store with the first tokens of another and room for more."""
    fresh = KeyValueStore(layers, tokens + room)
    for layer in range(layers):
        fresh.append(layer, store.keys(layer)[:, :tokens], store.values(layer)[:, :tokens])
    return fresh
