"""The state after prefill, from which every run of a study decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.record.attention import KeyValueStore
from oasis_sim.record.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Start:
    """Hold a prompt's keys and values, which no run changes, and what its layers see.

    ``store`` may hold tokens after the prompt; they are not read. ``low_rank`` has, for
    schemes that rebuild keys, the prompt's keys as rebuilt, [H, S, d] by full-attention layer.
    """

    store: KeyValueStore
    prompt: tuple[int, ...]
    room: int  # tokens that a run may add
    spans: tuple[int | None, ...]
    kv_heads: int
    block_tokens: int
    bound_join: str = "max"
    kv_16bit: bool = False
    low_rank: Mapping[int, Tensor] = field(default_factory=dict)

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
        return cls(
            store=store,
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
