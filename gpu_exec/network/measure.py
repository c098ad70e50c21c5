"""Measure every point: random scattered units, verified byte by byte, repeated until it agrees.

Whatever else runs on a machine only adds time, so a point's figure is its fastest transfer, and it
counts as repeatable when `AGREEING` transfers lie within `REPEAT_BOUND_PCT` of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_exec.network.points import Point
from gpu_exec.network.stamps import pool_words, wrong_bytes, wrong_units
from gpu_exec.network.transport import Transport
from oasis_sim.errors import RunFailed, UsageError

REPEAT_BOUND_PCT = 3.0
AGREEING = 3
SEED = 20_408
PAUSE_SECONDS = 0.001


@dataclass(frozen=True)
class Effort:
    """Say how often and how long a point is repeated at least, and how long until it agrees."""

    least: int = 10
    seconds: float = 1.0
    most_seconds: float = 6.0


@dataclass(frozen=True)
class Reading:
    """Hold the seconds of every transfer of one point, in the order of time."""

    point: Point
    seconds: tuple[float, ...]

    @property
    def best_s(self) -> float:
        """Return the fastest transfer: the time without disturbance."""
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        """Return the median."""
        return statistics.median(self.seconds)

    @property
    def agreeing(self) -> int:
        """Return how many transfers were as fast as the fastest, within the bound."""
        bound = self.best_s * (1 + REPEAT_BOUND_PCT / 100)
        return sum(second <= bound for second in self.seconds)

    @property
    def repeats(self) -> bool:
        """Say whether the fastest transfer was no accident."""
        return self.agreeing >= AGREEING


def measure(
    transport: Transport,
    wanted: Sequence[Point],
    effort: Effort = Effort(),
    progress: Callable[[str], None] | None = None,
) -> tuple[Reading, ...]:
    """Measure the points one after the other; raise RunFailed for any byte that is wrong."""
    random = np.random.default_rng(SEED)
    readings = []
    for number, point in enumerate(wanted, start=1):
        readings.append(_measure_point(transport, point, number, effort, random))
        if progress is not None:
            last = readings[-1]
            rate = point.transfer.total_bytes / last.best_s / 1e9
            progress(
                f"{number}/{len(wanted)} {point.label()}: {last.best_s * 1e6:,.1f} us, "
                f"{rate:.3g} GB/s, {last.agreeing} of {len(last.seconds)} agree"
            )
    return tuple(readings)


def _measure_point(
    transport: Transport, point: Point, generation: int, effort: Effort, random: np.random.Generator
) -> Reading:
    places = transport.pool_bytes // point.unit_bytes // 2
    if point.count > places:
        raise UsageError(f"{point.label()} does not fit pools of {transport.pool_bytes:,} B")
    transport.renew(generation)
    remote = pool_words(transport.pool_bytes, generation)
    seconds: list[float] = []
    started = time.monotonic()
    while True:
        # Every second place, in random order: no two units are neighbours anywhere.
        into, source = (
            (2 * random.permutation(places)[: point.count]).astype(np.int32) for _ in range(2)
        )
        moved = (point.unit_bytes, into, source)
        transport.poison(point.unit_bytes, into if seconds else None)
        # A process that has just slept is not the next to be interrupted on a busy machine.
        time.sleep(PAUSE_SECONDS)
        taken = transport.read(*moved)
        check = wrong_units if seconds else wrong_bytes
        if wrong := check(transport.local(), remote, moved):
            raise RunFailed(
                f"{point.label()}: {wrong:,} bytes arrived wrong in transfer {len(seconds) + 1}; "
                "this transport is not to be trusted"
            )
        seconds.append(taken)
        reading, spent = Reading(point, tuple(seconds)), time.monotonic() - started
        limit = effort.seconds if reading.repeats else effort.most_seconds
        if len(seconds) >= effort.least and spent >= limit:
            return reading
