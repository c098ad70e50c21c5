"""Flows that share NICs fairly: max-min fair rates, recomputed when a flow starts or ends.

Each flow leaves through one directed NIC and enters through another. Its rate is the largest that
can be given to all alike (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): a flow gets
less than another one only because a NIC of its own is full of flows that get no more than it, or
because of its own limit. Between two events rates are constant, so a flow's end is known and the
work at an event depends on the flows in progress only, not on bytes or time.

Bytes here are bytes of NIC time at the nominal rate (`NetworkProfile.wire_bytes`). The tests
hold them against exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled
from oasis_sim.units import PS_PER_S

NEVER_PS = 2**63 - 1
"""The end of a flow that has no rate."""
_FARTHEST_PS = 2.0**62
"""Some 50 days; a flow that would end later stands still for all purposes."""
_FIRST_SLOTS = 64

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class FairShare:
    """Hold the flows in progress on a set of directed NICs, on an integer clock.

    Flows are numbered; a number is free again after its flow has ended or was stopped. Calls must
    not go back in time. Rates are worked out when they are asked for, so flows that start at one
    instant cost one computation.
    """

    def __init__(self, bytes_per_s: Sequence[float]) -> None:
        """Start with idle NICs of the given rates."""
        self._nominal = np.array(bytes_per_s, dtype=np.float64) / PS_PER_S
        self._capacity = self._nominal.copy()
        self._load = np.zeros(len(self._nominal), dtype=np.int64)
        self._now = 0
        self._next = NEVER_PS
        self._stale = False
        self._count = 0
        self._active = np.empty(0, dtype=np.int64)
        self._nic = np.empty((0, 2), dtype=np.int64)
        self._left = np.empty(0)
        self._limit = np.empty(0)
        self._rate = np.empty(0)
        self._end = np.empty(0, dtype=np.int64)
        self._free: list[int] = []
        self._grow(_FIRST_SLOTS)

    @property
    def count(self) -> int:
        """Return the number of flows in progress."""
        return self._count

    @property
    def next_ps(self) -> int:
        """Return when the next flow ends if nothing else happens, NEVER_PS without one."""
        self._refresh()
        return self._next

    def load(self, nic: int) -> int:
        """Return the number of flows on a directed NIC."""
        return int(self._load[nic])

    def rate(self, flow: int) -> float:
        """Return the present rate of a flow in bytes per second."""
        self._refresh()
        return float(self._rate[flow] * PS_PER_S)

    def start(
        self, now_ps: int, nics: tuple[int, int], wire_bytes: float, limit_bytes_per_s: float
    ) -> int:
        """Start a flow out of one NIC and into another, at most at its own limit; return it."""
        self._move_to(now_ps)
        if not self._free:
            self._grow(2 * len(self._left))
        flow = self._free.pop()
        self._nic[flow] = nics
        self._load[list(nics)] += 1
        self._left[flow] = wire_bytes
        self._limit[flow] = limit_bytes_per_s / PS_PER_S
        self._rate[flow] = -1.0
        self._active[self._count] = flow
        self._count += 1
        self._stale = True
        return flow

    def ended(self, now_ps: int) -> list[int]:
        """Take out the flows that have ended by now; return them in the order of their numbers."""
        self._refresh()
        if now_ps < self._next:
            return []
        self._move_to(now_ps)
        active = self._active[: self._count]
        over = sorted(active[self._end[active] <= now_ps].tolist())
        for flow in over:
            self._remove(flow)
        return over

    def stop(self, now_ps: int, flow: int) -> float:
        """Take out a flow before its end; return the bytes that it has not sent."""
        self._move_to(now_ps)
        self._remove(flow)
        return float(self._left[flow])

    def set_share(self, now_ps: int, nic: int, share: float) -> None:
        """Let a directed NIC run at a share of its rate from now on; 0 stops it."""
        self._move_to(now_ps)
        self._capacity[nic] = self._nominal[nic] * share
        self._stale = True

    def _remove(self, flow: int) -> None:
        place = int(np.flatnonzero(self._active[: self._count] == flow)[0])
        self._count -= 1
        self._active[place] = self._active[self._count]
        self._load[self._nic[flow]] -= 1
        self._free.append(flow)
        self._stale = True

    def _move_to(self, now_ps: int) -> None:
        """Let all flows progress up to now."""
        if now_ps < self._now:
            raise ValueError("the clock went back")
        if now_ps > self._now:
            self._refresh()
            progress(now_ps - self._now, self._active[: self._count], self._rate, self._left)
            self._now = now_ps

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            active = self._active[: self._count]
            fair = fair_rates(self._nic[active], self._limit[active], self._capacity)
            self._next = set_ends(self._now, active, fair, self._left, self._rate, self._end)

    def _grow(self, slots: int) -> None:
        old = len(self._left)
        self._free.extend(range(slots - 1, old - 1, -1))
        self._active = np.concatenate([self._active, np.zeros(slots - old, dtype=np.int64)])
        self._nic = np.concatenate([self._nic, np.zeros((slots - old, 2), dtype=np.int64)])
        self._end = np.concatenate([self._end, np.zeros(slots - old, dtype=np.int64)])
        for name in ("_left", "_limit", "_rate"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(slots - old)]))


@compiled
def progress(elapsed_ps: int, active: Int64, rate: Float64, left: Float64) -> None:
    """Take from what is left of each active flow what it has sent in the elapsed time."""
    for flow in active:
        left[flow] = max(0.0, left[flow] - rate[flow] * elapsed_ps)


@compiled
def set_ends(
    now_ps: int, active: Int64, fair: Float64, left: Float64, rate: Float64, end: Int64
) -> int:
    """Give the active flows their new rates, renew the ends that move, return the first end."""
    first = NEVER_PS
    for i in range(len(active)):
        flow = active[i]
        if fair[i] != rate[flow]:
            rate[flow] = fair[i]
            end[flow] = NEVER_PS
            if fair[i] > 0.0 and left[flow] / fair[i] < _FARTHEST_PS - now_ps:
                end[flow] = now_ps + math.ceil(left[flow] / fair[i])
        first = min(first, end[flow])
    return first


@compiled
def fair_rates(nic: Int64, limit: Float64, capacity: Float64) -> Float64:
    """Return the max-min fair rate of each flow by progressive filling.

    `nic` int64[flows, 2], `limit` float64[flows], `capacity` float64[NICs]. All rates rise
    together; those at their limit stop there, and when a NIC is full its flows stop. Cost: flows,
    plus full NICs times NICs in use.
    """
    fair = np.full(len(limit), -1.0)
    room = capacity.copy()
    waiting = np.zeros(len(capacity), dtype=np.int64)
    head = np.full(len(capacity), -1, dtype=np.int64)
    following = np.empty(2 * len(limit), dtype=np.int64)
    used = _chain(nic, waiting, head, following)
    remaining = len(limit)
    least_limit = 0.0
    while remaining > 0:
        tight = _tightest(used, room, waiting)
        level = room[tight] / waiting[tight]
        if least_limit <= level:
            least_limit = np.inf
            for i in range(len(limit)):
                if fair[i] < 0.0 and limit[i] <= level:
                    remaining -= _settle(i, limit[i], nic, fair, room, waiting)
                elif fair[i] < 0.0:
                    least_limit = min(least_limit, limit[i])
            continue
        entry = head[tight]
        while entry >= 0:
            if fair[entry // 2] < 0.0:
                remaining -= _settle(entry // 2, level, nic, fair, room, waiting)
            entry = following[entry]
    return fair


@compiled
def _chain(nic: Int64, waiting: Int64, head: Int64, following: Int64) -> Int64:
    """Chain the flows of each NIC: entry 2 i + side is flow i; return the NICs in use."""
    used = np.empty(len(head), dtype=np.int64)
    count = 0
    for i in range(len(nic)):
        for side in range(2):
            n = nic[i, side]
            if waiting[n] == 0:
                used[count] = n
                count += 1
            waiting[n] += 1
            following[2 * i + side] = head[n]
            head[n] = 2 * i + side
    return used[:count]


@compiled
def _tightest(used: Int64, room: Float64, waiting: Int64) -> int:
    """Return the NIC whose waiting flows can get least each; one is waiting somewhere."""
    level = np.inf
    tight = -1
    for n in used:
        if waiting[n] > 0 and (tight < 0 or room[n] / waiting[n] < level):
            level = room[n] / waiting[n]
            tight = n
    return tight


@compiled
def _settle(i: int, rate: float, nic: Int64, fair: Float64, room: Float64, waiting: Int64) -> int:
    """Fix the rate of flow i and take it out of the room of its NICs; return 1 flow."""
    fair[i] = rate
    for side in range(2):
        n = nic[i, side]
        room[n] = max(0.0, room[n] - rate)
        waiting[n] -= 1
    return 1
