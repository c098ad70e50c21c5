"""The 8-bit logarithmic code of attention mass (``log2-u8-16``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oasis_sim.errors import InputError

MASS_CODE = "log2-u8-16"
_OCTAVES = 16.0


def decode_mass(code: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Turn codes into attention mass.

    Code 0 is mass 0, else ``2 ** (code / 255 * 16 - 16)``, so 255 is 1 and one step is 4.4 %.
    Any shape; the result has the shape of the input.
    """
    return mass_table()[np.asarray(code, dtype=np.uint8)]


def encode_mass(mass: ArrayLike) -> NDArray[np.uint8]:
    """Turn attention mass (0 to 1) into the nearest code; below 2**-16 it becomes 0.

    Raises InputError when a value is negative or not a number. Values above 1 (rounding of a
    softmax) become 255.
    """
    values = np.asarray(mass, dtype=np.float64)
    if np.isnan(values).any() or (values < 0).any():
        raise InputError("attention mass must be a number of 0 or more", field="mass")
    with np.errstate(divide="ignore"):
        code = np.rint((np.log2(values) + _OCTAVES) / _OCTAVES * 255.0)
    return np.clip(code, 0, 255).astype(np.uint8)


def mass_table() -> NDArray[np.float64]:
    """Return the mass of each of the 256 codes."""
    table = np.exp2(np.arange(256) / 255.0 * _OCTAVES - _OCTAVES)
    table[0] = 0.0
    return table
