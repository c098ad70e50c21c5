"""Amounts over time in bins of one length: bytes on a network, bytes held, requests resident."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oasis_sim.units import PS_PER_S

BIN_PS = PS_PER_S
FIRST_BINS = 64

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Series:
    """Add amounts over intervals of simulated time; memory follows time, not events.

    An amount over an interval is spread evenly over it.
    """

    def __init__(self) -> None:
        self._bins: Float64 = np.zeros(FIRST_BINS)
        self._end = 0

    def add(self, start_ps: int, end_ps: int, amount: float) -> None:
        """Spread an amount over an interval (an instant: into its bin)."""
        if amount == 0:
            return
        first, last = start_ps // BIN_PS, max(start_ps, end_ps - 1) // BIN_PS
        while last >= len(self._bins):
            self._bins = np.concatenate([self._bins, np.zeros(len(self._bins))])
        self._end = max(self._end, last + 1)
        if first == last:
            self._bins[first] += amount
            return
        per_ps = amount / (end_ps - start_ps)
        self._bins[first] += per_ps * ((first + 1) * BIN_PS - start_ps)
        self._bins[first + 1 : last] += per_ps * BIN_PS
        self._bins[last] += per_ps * (end_ps - last * BIN_PS)

    def values(self) -> Float64:
        """Return the amount in each bin, up to the last one in use."""
        return self._bins[: self._end].copy()


def add_series(parts: Sequence[Float64]) -> Float64:
    """Add series of different lengths, in their order."""
    total = np.zeros(max((len(part) for part in parts), default=0))
    for part in parts:
        total[: len(part)] += part
    return total


class Changes:
    """Note when a held quantity changes, in any order of time."""

    def __init__(self) -> None:
        self._when: list[int] = []
        self._delta: list[int] = []

    def add(self, now_ps: int, delta: int) -> None:
        """Hold more (or less) from a time on."""
        if delta:
            self._when.append(now_ps)
            self._delta.append(delta)

    def arrays(self) -> tuple[Int64, Int64]:
        """Return times and changes."""
        return np.array(self._when, dtype=np.int64), np.array(self._delta, dtype=np.int64)


class Level:
    """What was held over time, from all changes of one or several holders.

    `peak` is the most at once (of changes at one instant the downward ones come first), `left` what
    is held at the end.
    """

    def __init__(self, changes: Sequence[Changes]) -> None:
        arrays = [each.arrays() for each in changes]
        when = np.concatenate([when for when, _ in arrays])
        delta = np.concatenate([delta for _, delta in arrays])
        order = np.lexsort((delta, when))
        self._when = when[order]
        self._held = np.cumsum(delta[order])
        self.peak = int(self._held.max(initial=0))
        self.left = int(self._held[-1]) if len(order) else 0

    def mean(self, end_ps: int) -> float:
        """Return the mean held from 0 to `end_ps`, after the last change at the latest."""
        spans = np.diff(self._when, append=end_ps)
        return float((self._held * spans.astype(np.float64)).sum()) / max(end_ps, 1)

    def bins(self) -> Float64:
        """Return the mean held in each bin."""
        series = Series()
        held = self._held[:-1].tolist()
        ends = self._when[1:].tolist()
        for start, end, amount in zip(self._when[:-1].tolist(), ends, held, strict=True):
            series.add(start, end, float(amount) * (end - start))
        return series.values() / BIN_PS
