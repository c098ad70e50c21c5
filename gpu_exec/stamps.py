"""Unit contents that name their own address, so that a wrong or torn move is seen.

A unit is a row of 16-bit elements. Element e of unit u is a bf16 number of magnitude 0.5 to 1
(random signs and mantissas: safe for attention, and no zeros that flatter a timing). The first
eight elements spell the 64-bit address in their sign and mantissa bits, the others hash (u, e).
The same integer arithmetic runs on the device (`executor_cuda`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ADDRESS_ELEMENTS = 8
MIN_UNIT_BYTES = 2 * ADDRESS_ELEMENTS
POISON = np.uint16(0x7FC1)
_BASE = 0x3F00
_M1, _M2, _STEP = 0x7FEB352D, 0x846CA68B, 0x9E3779B9
_MASK32 = 0xFFFFFFFF

Units = npt.NDArray[np.int64]


def mix32(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a 32-bit avalanche hash (Ellis' lowbias32) of the low 32 bits of each value."""
    x = value & np.uint64(_MASK32)
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(_M1)) & np.uint64(_MASK32)
    x = ((x ^ (x >> np.uint64(15))) * np.uint64(_M2)) & np.uint64(_MASK32)
    return x ^ (x >> np.uint64(16))


def mix64(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit avalanche hash (splitmix64's finaliser) of each value."""
    x = value.astype(np.uint64, copy=True)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stamp(units: Units, elements: int) -> npt.NDArray[np.uint16]:
    """Return the contents of the units, uint16[n, elements]; `elements` is 8 or more."""
    if elements < ADDRESS_ELEMENTS:
        raise ValueError(f"a unit needs {ADDRESS_ELEMENTS} elements to hold its address")
    address = np.asarray(units, dtype=np.int64).astype(np.uint64)[:, None]
    index = np.arange(elements, dtype=np.uint64)[None, :]
    seed = mix32(address ^ (address >> np.uint64(32)))
    bits = mix32(seed + index * np.uint64(_STEP)) & np.uint64(0xFF)
    shift = np.uint64(8) * np.arange(ADDRESS_ELEMENTS, dtype=np.uint64)
    bits[:, :ADDRESS_ELEMENTS] = (address >> shift[None, :]) & np.uint64(0xFF)
    sign = (bits >> np.uint64(7)) << np.uint64(15)
    return (sign | np.uint64(_BASE) | (bits & np.uint64(0x7F))).astype(np.uint16)


def address_of(contents: npt.NDArray[np.uint16]) -> Units:
    """Return the address that each unit's contents spell, -1 where they spell none."""
    head = contents[:, :ADDRESS_ELEMENTS].astype(np.uint64)
    bits = ((head >> np.uint64(8)) & np.uint64(0x80)) | (head & np.uint64(0x7F))
    shift = np.uint64(8) * np.arange(ADDRESS_ELEMENTS, dtype=np.uint64)
    address = np.bitwise_or.reduce(bits << shift[None, :], axis=1).astype(np.int64)
    valid = ((head & np.uint64(0x7F80)) == np.uint64(_BASE)).all(axis=1)
    return np.where(valid, address, -1)


def wrong_units(contents: npt.NDArray[np.uint16], expected: Units) -> npt.NDArray[np.bool_]:
    """Return which units differ anywhere from the stamp of the expected address."""
    wrong: npt.NDArray[np.bool_] = (contents != stamp(expected, contents.shape[1])).any(axis=1)
    return wrong
