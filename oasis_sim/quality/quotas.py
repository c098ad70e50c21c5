"""How many blocks each layer may admit where layers share their caps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.plain import split_by_need


class LayerQuotas:
    """Split a step's admissions over layers by what each needed in the step before."""

    def __init__(self, heads: int = 0, layers: Sequence[int] = ()) -> None:
        """Take the layers that share; without any, none has a quota."""
        self._heads = heads
        self._needed: dict[int, NDArray[np.int64]] = {}
        self._quotas: dict[int, NDArray[np.int64]] = {}
        self._layers = tuple(layers)

    def of(self, layer: int, cap: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return a layer's admissions by row, [R]; layers ask in turn, the first splits for all.

        ``cap`` are admissions per head and layer by row, [R, 1, 1].
        """
        if not self._layers:
            return None
        rows = cap[:, 0, 0]
        if layer == self._layers[0]:
            totals = rows * self._heads * len(self._layers)
            none = np.zeros(len(rows), dtype=np.int64)
            needed = np.stack([self._needed.get(each, none) for each in self._layers], axis=1)
            split = [
                split_by_need(row.tolist(), int(total))
                for row, total in zip(needed, totals, strict=True)
            ]
            self._quotas = dict(zip(self._layers, np.array(split).T, strict=True))
        return self._quotas[layer]

    def note(self, layer: int, needed: NDArray[np.int32]) -> None:
        """Keep what a layer's heads needed in a step, [R, H]."""
        self._needed[layer] = needed.sum(axis=1, dtype=np.int64)
