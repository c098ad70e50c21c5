"""Measure every point in rounds: random scattered units, each transfer verified byte by byte.

All points are visited in every round, so that a spell of other work on the machine does not fall
on one of them alone; a point's figure is the median over all rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_exec.network.points import Point
from gpu_exec.network.stamps import Words, pool_words, wrong_bytes, wrong_units
from gpu_exec.network.transport import Transport
from oasis_sim.errors import RunFailed, UsageError

SEED = 20_408


@dataclass(frozen=True)
class Effort:
    """Say how many rounds there are, and of a visit how many transfers and seconds at least."""

    rounds: int = 10
    transfers: int = 4
    seconds: float = 0.3


GPU_EFFORT = Effort(rounds=6, seconds=0.15)
"""Between GPUs, where more transfers are measured and each is checked in host memory."""


@dataclass(frozen=True)
class Reading:
    """Hold the seconds of every transfer of one point, in the order of time."""

    point: Point
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Return the figure: the median."""
        return statistics.median(self.seconds)

    @property
    def best_s(self) -> float:
        """Return the fastest transfer."""
        return min(self.seconds)

    @property
    def spread_pct(self) -> float:
        """Return the distance of the quartiles in percent of the median."""
        low, high = np.percentile(self.seconds, (25, 75))
        return float(100.0 * (high - low) / self.median_s)


def measure(
    transport: Transport,
    wanted: Sequence[Point],
    effort: Effort = Effort(),
    progress: Callable[[str], None] | None = None,
) -> tuple[Reading, ...]:
    """Measure all points in every round; raise RunFailed for any byte that is wrong."""
    for point in wanted:
        if point.count > _places(transport, point):
            raise UsageError(f"{point.label()} does not fit pools of {transport.pool_bytes:,} B")
    random = np.random.default_rng(SEED)
    found: dict[Point, tuple[float, ...]] = dict.fromkeys(wanted, ())
    for turn in range(1, effort.rounds + 1):
        transport.renew(turn)
        remote = pool_words(transport.pool_bytes, turn)
        for point in wanted:
            found[point] += _visit(transport, point, remote, effort, random)
        if progress is not None:
            spreads = [Reading(point, seconds).spread_pct for point, seconds in found.items()]
            progress(
                f"round {turn} of {effort.rounds}: quartiles lie "
                f"{statistics.median(spreads):.0f} % apart in the median"
            )
    return tuple(Reading(point, seconds) for point, seconds in found.items())


def _visit(
    transport: Transport, point: Point, remote: Words, effort: Effort, random: np.random.Generator
) -> tuple[float, ...]:
    """Return the seconds of some transfers of one kind, all verified."""
    places = _places(transport, point)
    seconds: list[float] = []
    started = time.monotonic()
    while len(seconds) < effort.transfers or time.monotonic() - started < effort.seconds:
        # Every second place, in random order: no two units are neighbours anywhere.
        into, source = (
            (2 * random.permutation(places)[: point.count]).astype(np.int32) for _ in range(2)
        )
        moved = (point.unit_bytes, into, source)
        transport.poison(point.unit_bytes, into if seconds else None)
        taken = transport.read(*moved)
        check = wrong_units if seconds else wrong_bytes
        if wrong := check(transport.local(), remote, moved):
            raise RunFailed(
                f"{point.label()}: {wrong:,} bytes arrived wrong in transfer {len(seconds) + 1}; "
                "this transport is not to be trusted"
            )
        seconds.append(taken)
    return tuple(seconds)


def _places(transport: Transport, point: Point) -> int:
    return transport.pool_bytes // point.unit_bytes // 2
