"""Streams that slow each other down: when work is done beside busy neighbours.

The background streams (transfer, prediction, selection) are first-in first-out, so their busy
intervals are known when a stage is computed. Work progresses at a rate of 1 / slowdown while a
neighbour is busy. Rates are fixed-point numbers with `RATE_BITS` fraction bits; progress is rounded
down once for each stretch of time with an unchanged rate. The event-driven twin of the tests
rounds alike, so that both give the same integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled

RATE_BITS = 20
RATE_ONE = 1 << RATE_BITS
FAR_PS = 1 << 62

# Rows of the interval rings, and columns of the rate table.
TRANSFER, PREDICTION, SELECTION = 0, 1, 2
# Rows of the rate table: whose progress it is.
LINEAR, ATTENTION, BACKGROUND = 0, 1, 2

# Intervals of one stream that a comparison of two moments looks at, and its length.
MOST_PENDING = 8
LOOK = 2 + 2 * MOST_PENDING

Int64 = npt.NDArray[np.int64]


@compiled
def push(ring: Int64, cursor: Int64, start: int, end: int) -> None:
    """Note that a stream is busy from start to end; a seamless continuation is one interval.

    `ring` int64[R, 2] holds the last R intervals of the stream, `cursor` int64[2] how many were
    written and the oldest that may still matter.
    """
    if end <= start:
        return
    written, first = cursor[0], cursor[1]
    last = (written - 1) % ring.shape[0]
    if written > first and ring[last, 1] == start:
        ring[last, 1] = end
        return
    ring[written % ring.shape[0], 0] = start
    ring[written % ring.shape[0], 1] = end
    cursor[0] += 1


@compiled
def forget(ring: Int64, cursor: Int64, now: int) -> None:
    """Pass over the intervals that ended before the foreground's clock."""
    for s in range(3):
        first = max(cursor[s, 1], cursor[s, 0] - ring.shape[1])
        while first < cursor[s, 0] and ring[s, first % ring.shape[1], 1] <= now:
            first += 1
        cursor[s, 1] = first


@compiled
def _rate(now: int, rates: Int64, ring: Int64, cursor: Int64, found: Int64) -> None:
    """Set found to the progress rate at `now` and the time of the next change of any stream."""
    rate = RATE_ONE
    change = FAR_PS
    for s in range(3):
        i = cursor[s, 1]
        while i < cursor[s, 0] and ring[s, i % ring.shape[1], 1] <= now:
            i += 1
        if i < cursor[s, 0]:
            begin = ring[s, i % ring.shape[1], 0]
            if begin <= now:
                rate = (rate * rates[s]) >> RATE_BITS
                change = min(change, ring[s, i % ring.shape[1], 1])
            else:
                change = min(change, begin)
    found[0] = rate
    found[1] = change


@compiled
def finish(start: int, work: int, rates: Int64, ring: Int64, cursor: Int64) -> int:
    """Return when `work` picoseconds begun at `start` are done beside the busy neighbours."""
    if work <= 0:
        return start
    found = np.empty(2, dtype=np.int64)
    _rate(start, rates, ring, cursor, found)
    since, left, rate, change = start, work, found[0], found[1]
    while True:
        if rate > 0:
            done: int = since + ((left << RATE_BITS) + rate - 1) // rate
            if done <= change:
                return done
        now = change
        _rate(now, rates, ring, cursor, found)
        change = found[1]
        if found[0] != rate:
            left -= ((now - since) * rate) >> RATE_BITS
            since, rate = now, found[0]


@compiled
def finish_linear(
    start: int, work: int, rates: Int64, covered: int, ring: Int64, cursor: Int64
) -> int:
    """Return when linear layers are done: as `finish`, and no later than beside endless transfers.

    Those let them progress at the rate `covered` (0: not told apart). A kernel is slowed whole by a
    transfer that touches it, so that one which covers a part costs more for its time.
    """
    done: int = finish(start, work, rates, ring, cursor)
    if covered <= 0 or work <= 0:
        return done
    longest = ((work << RATE_BITS) + covered - 1) // covered
    if done - start <= longest:
        return done
    others = rates.copy()
    others[TRANSFER] = RATE_ONE
    bound: int = finish(start, longest, others, ring, cursor)
    return min(done, bound)


@compiled
def look(ring: Int64, cursor: Int64, free: Int64, now: int, found: Int64) -> bool:
    """Describe what each stream still has to do after `now`, relative to it; False if too much.

    `free` int64[3] is when each stream is free. `found` int64[3, LOOK] receives, per stream, the
    number of its intervals that end after `now`, the time until it is free, and the bounds of
    these intervals; a start before `now` counts as `now`.
    """
    for s in range(3):
        count = 0
        for i in range(cursor[s, 1], cursor[s, 0]):
            end = ring[s, i % ring.shape[1], 1]
            if end > now:
                if count == MOST_PENDING:
                    return False
                found[s, 2 + 2 * count] = max(ring[s, i % ring.shape[1], 0] - now, 0)
                found[s, 3 + 2 * count] = end - now
                count += 1
        found[s, 0] = count
        found[s, 1] = max(free[s] - now, 0)
    return True


@compiled
def alike(one: Int64, other: Int64) -> bool:
    """Say whether two descriptions of a stream are equal, int64[LOOK] each."""
    used, same = 2 + 2 * one[0], 0
    while same < used and one[same] == other[same]:
        same += 1
    equal: bool = same == used
    return equal


@compiled
def shift(ring: Int64, cursor: Int64, starts: int, ends: int) -> None:
    """Let the intervals of one stream that may still matter start and end later (see `push`)."""
    for i in range(cursor[1], cursor[0]):
        ring[i % ring.shape[0], 0] += starts
        ring[i % ring.shape[0], 1] += ends
