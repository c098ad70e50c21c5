"""The share of attention mass that was read, where a step's mass is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def captured_share(captured: Float64, total: Float64) -> Float64:
    """Return captured / total; NaN (unknown) where a step, layer and head holds no mass."""
    share = np.full(captured.shape, np.nan)
    np.divide(captured, total, out=share, where=total > 0)
    return share


def known_mean(share: Float64) -> Float64:
    """Return the mean over layers and heads of each step, float64[W], of shares [W, L, H].

    Unknown shares do not count; a step of which nothing is known takes the mean of the others.
    At least one share must be known.
    """
    known = ~np.isnan(share)
    if known.all():
        return np.asarray(share.mean(axis=(1, 2)))
    counts = known.sum(axis=(1, 2))
    means = np.where(known, share, 0.0).sum(axis=(1, 2)) / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, means, means[counts > 0].mean()))
