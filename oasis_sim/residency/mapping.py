"""Stand recorded layers and heads in for those of the simulated model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.stats import full_attention_part
from oasis_sim.trace.part import select_part
from oasis_sim.trace.trace import AttentionTrace


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Hold the recorded part that a model uses, and who stands in for whom.

    ``layer`` int64[model layers] and ``head`` int64[model KV heads] index the part's layers and
    heads.
    """

    part: AttentionTrace
    layer: NDArray[np.int64]
    head: NDArray[np.int64]

    def expand(self, array: NDArray[Any]) -> NDArray[Any]:
        """Turn [S, L, H] of the part into [S, model layers, model heads]."""
        return array[:, self.layer][:, :, self.head]

    def sum_heads(self, array: NDArray[Any]) -> NDArray[Any]:
        """Turn [S, L, H] of the part into [S, model layers], summed over the model's heads."""
        weight = np.bincount(self.head, minlength=array.shape[2])
        return (array @ weight)[:, self.layer]


def map_heads(trace: AttentionTrace, model_layers: int, model_heads: int) -> HeadMap:
    """Map a model of some layers and KV heads to a trace.

    A model layer takes the recorded full-attention layer of the nearest relative depth (the
    layer itself when the models have equally many layers and it was recorded; ties to the lower
    one). Head h takes recorded head h mod H.
    """
    full = full_attention_part(trace)
    layer = nearest_layers(full.layer_ids, full.model_layers, model_layers)
    head = np.arange(model_heads, dtype=np.int64) % full.kv_heads
    used_layers, layer_index = np.unique(layer, return_inverse=True)
    used_heads, head_index = np.unique(head, return_inverse=True)
    part = full
    if len(used_layers) < full.layers or len(used_heads) < full.kv_heads:
        part = select_part(full, layers=used_layers.tolist(), heads=used_heads.tolist())
    return HeadMap(part, layer_index.astype(np.int64), head_index.astype(np.int64))


def nearest_layers(
    recorded_ids: Sequence[int], recorded_layers: int, model_layers: int
) -> NDArray[np.int64]:
    """Return for each model layer the index of the recorded layer of nearest depth.

    The depth of layer l of n is its middle, (l + 0.5) / n; compared in integers, so that ties
    are exact.
    """
    recorded = (2 * np.asarray(recorded_ids, dtype=np.int64) + 1) * model_layers
    model = (2 * np.arange(model_layers, dtype=np.int64) + 1) * recorded_layers
    distance = np.abs(model[:, None] - recorded[None, :])
    return np.asarray(np.argmin(distance, axis=1), dtype=np.int64)
