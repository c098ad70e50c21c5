"""Amounts over time in bins of one length: bytes on a network, bytes held, requests resident."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.units import PS_PER_S

FIRST_BINS = 64


class Series:
    """Add amounts over intervals of simulated time; memory follows time, not events.

    `total` is the sum of all amounts. An amount over an interval is spread evenly over it.
    """

    def __init__(self, bin_ps: int = PS_PER_S) -> None:
        self.bin_ps = bin_ps
        self.total = 0.0
        self._bins: npt.NDArray[np.float64] = np.zeros(FIRST_BINS)
        self._end = 0

    def add(self, start_ps: int, end_ps: int, amount: float) -> None:
        """Spread an amount over an interval (an instant: into its bin)."""
        if amount == 0:
            return
        self.total += amount
        first, last = start_ps // self.bin_ps, max(start_ps, end_ps - 1) // self.bin_ps
        while last >= len(self._bins):
            self._bins = np.concatenate([self._bins, np.zeros(len(self._bins))])
        self._end = max(self._end, last + 1)
        if first == last:
            self._bins[first] += amount
            return
        per_ps = amount / (end_ps - start_ps)
        self._bins[first] += per_ps * ((first + 1) * self.bin_ps - start_ps)
        self._bins[first + 1 : last] += per_ps * self.bin_ps
        self._bins[last] += per_ps * (end_ps - last * self.bin_ps)

    def values(self) -> npt.NDArray[np.float64]:
        """Return the amount in each bin, up to the last one in use."""
        return self._bins[: self._end].copy()


class Level:
    """Follow a quantity that is held: its integral over time, its peak, its mean per bin."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.held = Series()
        self._since = 0

    def change(self, now_ps: int, delta: int) -> None:
        """Hold more (or less) from now on."""
        self.held.add(self._since, now_ps, float(self.now) * (now_ps - self._since))
        self._since = now_ps
        self.now += delta
        self.peak = max(self.peak, self.now)

    def mean(self, start_ps: int, end_ps: int) -> float:
        """Return the mean held from `start_ps` to `end_ps`, outside of which nothing is held."""
        return self.held.total / max(end_ps - start_ps, 1)
