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

from oasis_sim.compiled import uncounted

RATE_BITS = 20
RATE_ONE = 1 << RATE_BITS
FAR_PS = 1 << 62

# Streams of one rank, and columns of the rate table. Rank r of the GPUs that work together has the
# lanes 3 r, 3 r + 1 and 3 r + 2 of all arrays of streams; `base` is the first of them.
TRANSFER, PREDICTION, SELECTION = 0, 1, 2
STREAMS = 3
# Rows of the rate table: whose progress it is.
LINEAR, ATTENTION, BACKGROUND = 0, 1, 2

# Intervals of one stream that a comparison of two moments looks at, and its length.
MOST_PENDING = 8
LOOK = 2 + 2 * MOST_PENDING

Int64 = npt.NDArray[np.int64]


@uncounted
def push(ring: Int64, cursor: Int64, lane: int, start: int, end: int) -> None:
    """Note that a stream is busy from start to end; a seamless continuation is one interval.

    `ring` int64[3 R, N, 2] holds the last N intervals of each lane, N a power of two; `cursor`
    int64[3 R, 2] how many were written and the oldest that may still matter.
    """
    if end <= start:
        return
    mask = ring.shape[1] - 1
    written, first = cursor[lane, 0], cursor[lane, 1]
    last = (written - 1) & mask
    if written > first and ring[lane, last, 1] == start:
        ring[lane, last, 1] = end
        return
    ring[lane, written & mask, 0] = start
    ring[lane, written & mask, 1] = end
    cursor[lane, 0] += 1


@uncounted
def forget(ring: Int64, cursor: Int64, base: int, now: int) -> None:
    """Pass over the intervals that ended before the foreground's clock."""
    mask = ring.shape[1] - 1
    for lane in range(base, base + STREAMS):
        first = max(cursor[lane, 1], cursor[lane, 0] - mask - 1)
        while first < cursor[lane, 0] and ring[lane, first & mask, 1] <= now:
            first += 1
        cursor[lane, 1] = first


@uncounted
def _rate(
    now: int, rates: Int64, ring: Int64, cursor: Int64, base: int, first: int
) -> tuple[int, int]:
    """Return the progress rate at `now`, and when it may change; streams before `first` apart."""
    rate, change, mask = RATE_ONE, FAR_PS, ring.shape[1] - 1
    for s in range(first, STREAMS):
        lane = base + s
        i = cursor[lane, 1]
        while i < cursor[lane, 0] and ring[lane, i & mask, 1] <= now:
            i += 1
        if i < cursor[lane, 0]:
            begin = ring[lane, i & mask, 0]
            if begin <= now:
                rate = (rate * rates[s]) >> RATE_BITS
                change = min(change, ring[lane, i & mask, 1])
            else:
                change = min(change, begin)
    return rate, change


@uncounted
def finish(
    start: int, work: int, rates: Int64, ring: Int64, cursor: Int64, base: int, first: int
) -> int:
    """Return when `work` picoseconds begun at `start` are done beside a rank's busy streams.

    Those before the stream `first` do not slow it.
    """
    if work <= 0:
        return start
    since, left = start, work
    rate, change = _rate(start, rates, ring, cursor, base, first)
    while True:
        if rate > 0:
            done: int = since + ((left << RATE_BITS) + rate - 1) // rate
            if done <= change:
                return done
        now = change
        new_rate, change = _rate(now, rates, ring, cursor, base, first)
        if new_rate != rate:
            left -= ((now - since) * rate) >> RATE_BITS
            since, rate = now, new_rate


@uncounted
def finish_linear(
    start: int, work: int, rates: Int64, covered: int, ring: Int64, cursor: Int64, base: int
) -> int:
    """Return when linear layers are done: as `finish`, and no later than beside endless transfers.

    Those let them progress at the rate `covered` (0: not told apart). A kernel is slowed whole by a
    transfer that touches it, so that one which covers a part costs more for its time.
    """
    done: int = finish(start, work, rates, ring, cursor, base, TRANSFER)
    if covered <= 0 or work <= 0:
        return done
    longest = ((work << RATE_BITS) + covered - 1) // covered
    if done - start <= longest:
        return done
    bound: int = finish(start, longest, rates, ring, cursor, base, TRANSFER + 1)
    return min(done, bound)


@uncounted
def look(ring: Int64, cursor: Int64, free: Int64, now: int, found: Int64) -> bool:
    """Describe what each stream still has to do after `now`, relative to it; False if too much.

    `free` int64[3 R] is when each lane is free. `found` int64[3 R, LOOK] receives, per lane, the
    number of its intervals that end after `now`, the time until it is free, and the bounds of
    these intervals; a start before `now` counts as `now`.
    """
    mask = ring.shape[1] - 1
    for lane in range(free.shape[0]):
        count = 0
        for i in range(cursor[lane, 1], cursor[lane, 0]):
            end = ring[lane, i & mask, 1]
            if end > now:
                if count == MOST_PENDING:
                    return False
                found[lane, 2 + 2 * count] = max(ring[lane, i & mask, 0] - now, 0)
                found[lane, 3 + 2 * count] = end - now
                count += 1
        found[lane, 0] = count
        found[lane, 1] = max(free[lane] - now, 0)
    return True


@uncounted
def alike(one: Int64, other: Int64, lane: int) -> bool:
    """Say whether two descriptions of a lane are equal, of int64[3 R, LOOK] each."""
    used, same = 2 + 2 * one[lane, 0], 0
    while same < used and one[lane, same] == other[lane, same]:
        same += 1
    equal: bool = same == used
    return equal


@uncounted
def shift(ring: Int64, cursor: Int64, lane: int, starts: int, ends: int) -> None:
    """Let the intervals of a lane that may still matter start and end later (see `push`)."""
    mask = ring.shape[1] - 1
    for i in range(cursor[lane, 1], cursor[lane, 0]):
        ring[lane, i & mask, 0] += starts
        ring[lane, i & mask, 1] += ends
