"""The state after prefill, from which every run of a study decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.record.attention import KeyValueStore
from oasis_sim.record.orders import block_extremes
from oasis_sim.record.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Start:
    """Hold a prompt's keys and values, which no run changes, and what its layers see.

    ``bounds`` are the extreme keys of the prompt's complete blocks by full-attention layer: minimum
    and maximum, float64 [H, N, d] each. ``store`` may hold tokens after the prompt; they are not
    read.
    """

    store: KeyValueStore
    bounds: Mapping[int, tuple[Tensor, Tensor]]
    prompt: tuple[int, ...]
    room: int  # tokens that a run may add
    spans: tuple[int | None, ...]
    kv_heads: int
    block_tokens: int
    bound_join: str = "max"
    kv_16bit: bool = False

    @classmethod
    def after_prompt(
        cls,
        path: Trajectory,
        block_tokens: int,
        bound_join: str = "max",
        *,
        kv_16bit: bool = False,
    ) -> Start:
        """Keep the prompt of a trajectory; ``kv_16bit`` rounds its keys and values to bfloat16.

        Raises InputError when no layer attends to the whole context.
        """
        if all(span is not None for span in path.spans):
            raise InputError(
                "every layer attends to a sliding window only: there is nothing to offload",
                field="sliding_window",
                fix="use a model with full-attention layers",
            )
        store = path.store
        if kv_16bit:
            store = KeyValueStore(store.layers, path.prompt_tokens)
            for layer in range(store.layers):
                both = path.store.keys(layer), path.store.values(layer)
                store.append(layer, *(rounded(part[:, : path.prompt_tokens]) for part in both))
        bounds = {
            layer: block_extremes(store.keys(layer)[:, : path.prompt_tokens], block_tokens)
            for layer, span in enumerate(path.spans)
            if span is None
        }
        return cls(
            store=store,
            bounds=bounds,
            prompt=path.tokens[: path.prompt_tokens],
            room=path.steps,
            spans=path.spans,
            kv_heads=int(path.store.keys(0).shape[0]),
            block_tokens=block_tokens,
            bound_join=bound_join,
            kv_16bit=kv_16bit,
        )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Return the layers that attend to the whole context: those that are offloaded."""
        return tuple(layer for layer, span in enumerate(self.spans) if span is None)

    @property
    def blocks(self) -> int:
        """Return how many blocks prompt, decoded tokens and a draft can reach."""
        return (len(self.prompt) + self.room) // self.block_tokens + 2


def rounded(values: Tensor) -> Tensor:
    """Return values as bfloat16 keeps them, in their own type."""
    return values.bfloat16().to(values.dtype)
