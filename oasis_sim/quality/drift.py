"""Which heads are corrected because their query moved too far from the one before (FreeKV).

FreeKV compares the cosine of a KV head's queries, a mean over its group, with a threshold. A
scheme says instead what share of the heads is corrected; the threshold is then the cosine below
which that share of all that the layer has seen so far lies.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class QueryDrift:
    """Compare each layer's queries with those of the step before."""

    def __init__(self, share: float, heads: int) -> None:
        """Correct a share of the (step, KV head) pairs of each row and layer."""
        self._share = share
        self._heads = heads
        self._last: dict[int, Tensor] = {}
        self._cosines: dict[int, list[NDArray[np.float64]]] = {}

    def corrected(self, layer: int, query: Tensor) -> NDArray[np.bool_]:
        """Return which heads take the step's own choice, bool [R, H]; query [Hq, R, d]."""
        last = self._last.get(layer)
        self._last[layer] = query
        rows = query.shape[1]
        if last is None:
            return np.zeros((rows, self._heads), dtype=np.bool_)
        each = torch.cosine_similarity(query.double(), last.double(), dim=-1)
        cosine = np.asarray(each.view(self._heads, -1, rows).mean(dim=1).T)
        seen = self._cosines.setdefault(layer, [])
        seen.append(cosine)
        if self._share >= 1.0:
            return np.ones_like(cosine, dtype=np.bool_)
        bound = np.quantile(np.stack(seen, axis=1).reshape(rows, -1), self._share, axis=1)
        return cosine < bound[:, None]
