"""The attention trace: which blocks each head needs, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_BLOCK = 65535
"""The id that fills an order after its last block."""

Order = NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Hold one recorded or synthetic trace (schema ``oasis-trace`` version 1).

    T steps, L recorded layers, H KV heads, M stored order length, NB blocks. An order lists the
    ids of complete blocks, best first; ``NO_BLOCK`` fills its end. ``mass`` holds codes of
    ``oasis_sim.trace.mass``. ``warnings`` are what the reader had to drop or assume.
    """

    meta: Mapping[str, Any]
    position: NDArray[np.int32]  # [T] position of the token processed at a step
    token: NDArray[np.int32]  # [T+1]
    use_order: Order  # [T, L, H, M] by the true query
    pred_order: Mapping[str, Order] = field(default_factory=dict)  # by a draft's query
    accepted: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  # [T]
    draft_token: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # [T]
    mass: NDArray[np.uint8] | None = None  # [T, L, H, NB]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the trace's own name."""
        return str(self.meta["name"])

    @property
    def origin(self) -> str:
        """Return ``recorded`` or ``synthetic``."""
        return str(self.meta["origin"])

    @property
    def is_synthetic(self) -> bool:
        """Tell whether no model produced this trace."""
        return self.origin == "synthetic"

    @property
    def steps(self) -> int:
        """Return T."""
        return int(self.use_order.shape[0])

    @property
    def layers(self) -> int:
        """Return L, the recorded layers."""
        return int(self.use_order.shape[1])

    @property
    def kv_heads(self) -> int:
        """Return H, the recorded KV heads of a layer."""
        return int(self.use_order.shape[2])

    @property
    def stored_blocks(self) -> int:
        """Return M, the blocks stored per order."""
        return int(self.use_order.shape[3])

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block."""
        return int(self.meta["block_tokens"])

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Return the original numbers of the recorded layers."""
        return tuple(int(layer) for layer in self.meta["layer_ids"])

    @property
    def model_layers(self) -> int:
        """Return the layers of the traced model, recorded or not."""
        return int(self.meta["model"]["layers"])

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Return the indexes of recorded layers that attend to the whole context.

        Sliding-window layers have a span in tokens; KV offload does not concern them.
        """
        spans = self.meta.get("layer_span") or [None] * self.layers
        return tuple(index for index, span in enumerate(spans) if span is None)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Return the names of the stored draft predictors, in stored order."""
        return tuple(self.pred_order)
