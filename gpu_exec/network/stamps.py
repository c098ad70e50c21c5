"""Contents of a pool that name their own address: every wrong, stale or torn byte is seen."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from gpu_exec.stamps import mix64

WORD_BYTES = 8
POISON = np.uint64(0xDEADDEADDEADDEAD)

Words = npt.NDArray[np.uint64]
Units = npt.NDArray[np.int32]


def pool_words(size_bytes: int, generation: int) -> Words:
    """Return what the serving pool holds: hash of the address xor hash of the generation."""
    return _addresses(size_bytes) ^ mix64(np.array([generation + 1], dtype=np.uint64))


@cache
def _addresses(size_bytes: int) -> Words:
    return mix64(np.arange(size_bytes // WORD_BYTES, dtype=np.uint64))


def units_of(pool: Words, unit_bytes: int) -> Words:
    """View a pool as units: uint64[units, words]."""
    words = unit_bytes // WORD_BYTES
    whole = len(pool) // words
    return pool[: whole * words].reshape(whole, words)


def wrong_bytes(local: Words, remote: Words, moved: tuple[int, Units, Units]) -> int:
    """Count the bytes of the whole local pool that are not as they must be after a transfer.

    `moved` is the unit size, and which local units received which remote ones. All else must
    still be poison.
    """
    unit_bytes, into, source = moved
    expected = np.full_like(local, POISON)
    units_of(expected, unit_bytes)[into] = units_of(remote, unit_bytes)[source]
    return _differing(local, expected)


def wrong_units(local: Words, remote: Words, moved: tuple[int, Units, Units]) -> int:
    """Count the wrong bytes of the received units alone."""
    unit_bytes, into, source = moved
    return _differing(units_of(local, unit_bytes)[into], units_of(remote, unit_bytes)[source])


def _differing(got: Words, wanted: Words) -> int:
    if np.array_equal(got, wanted):
        return 0
    return int((got.view(np.uint8) != wanted.view(np.uint8)).sum())
