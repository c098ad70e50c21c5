"""Random numbers that are the same on every platform and NumPy version.

NumPy keeps the raw streams of its bit generators stable, but not what ``Generator`` makes of
them. Everything here is integer arithmetic on raw 64-bit words and one exact scaling.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

#: Sum of twelve 16-bit fields: mean 12 * 65535 / 2, variance 12 * (2^32 - 1) / 12.
_FIELDS_MEAN = 6 * 65535.0
_FIELDS_STD = 65536.0


class ExactRandom:
    """Draw reproducible uniform and normal arrays from one named stream of a seed."""

    def __init__(self, seed: int, stream: str) -> None:
        """Open stream ``stream`` of ``seed`` (a whole number >= 0)."""
        sequence = np.random.SeedSequence([seed, zlib.crc32(stream.encode())])
        self._bits = np.random.PCG64(sequence)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1): multiples of 2^-53."""
        raw = self._bits.random_raw(math.prod(shape))
        return np.reshape((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53, shape)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Return numbers of mean 0 and variance 1: sums of twelve uniforms (|x| < 6)."""
        fields = self._bits.random_raw(3 * math.prod(shape)).view(np.uint16)
        total = fields.reshape(-1, 12).sum(axis=1, dtype=np.int64)
        return np.reshape((total - _FIELDS_MEAN) / _FIELDS_STD, shape)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return a random order of 0 .. count - 1."""
        raw = self._bits.random_raw(count)
        return np.argsort(raw, kind="stable").astype(np.int64)
