"""What attention has read of the resident blocks of one layer, for rows that decode side by side.

The rules are those of ``oasis_sim.residency.observed``, written for arrays: a block's share of what
was read is averaged over steps, the worth of fetches over fetches, and a decision knows what was
read up to two steps before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.observed import NEWEST_FETCH, NEWEST_STEP, UNREAD

Shares = NDArray[np.float64]
Blocks = NDArray[np.bool_]
Places = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]
"""Rows, heads and blocks, one after the other."""


class ReadShares:
    """Keep shares by row, head and block, and the worth of fetches by row and head."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Begin with nothing read, for [R, H, B]."""
        self._held = np.full(shape, UNREAD)
        self.known = self._held.copy()
        self._worth = np.full(shape[:2], UNREAD)
        self._known_worth = self._worth.copy()

    def room(self, outside: Blocks, free: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many blocks may come, [R, H].

        Into free slots, and for blocks outside the target that held no more than fetches do.
        """
        poor = outside & (self.known <= self._known_worth[..., None])
        return np.asarray(free + poor.sum(axis=-1))

    def forget(self, fetched: Places) -> None:
        """Forget what blocks held before they were fetched again."""
        self._held[fetched] = self.known[fetched] = UNREAD

    def note(self, shares: Shares, read: Blocks, fetched: Places) -> None:
        """Note the shares [R, H, B] of what attention read, of which some was just fetched."""
        self.known[:], self._known_worth[:] = self._held, self._worth
        wide = np.zeros_like(self._held)
        wide[..., : shares.shape[-1]] = shares
        before = np.where(self._held == UNREAD, wide, self._held)
        self._held[read] = (before + (wide - before) * NEWEST_STEP)[read]
        for row, head, block in zip(*fetched, strict=True):
            share, worth = self._held[row, head, block], self._worth[row, head]
            before_it = share if worth == UNREAD else worth
            self._worth[row, head] = before_it + (share - before_it) * NEWEST_FETCH
