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
OUT, INTO, END = range(3)
"""Columns of whole numbers: the NICs that a flow leaves and enters by, and when it ends."""
LEFT, LIMIT, RATE = range(3)
"""Columns of reals: bytes left, and bytes per picosecond at most and now."""
NEW = -1.0
"""The rate of a flow that has not been given one."""
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
        self._load = [0] * len(bytes_per_s)
        self._now = 0
        self._next = NEVER_PS
        self._stale = False
        self._free: list[int] = []
        self._place: list[int] = []
        self._count = 0
        self._active = np.zeros(0, dtype=np.int64)
        self._whole = np.zeros((0, 3), dtype=np.int64)
        self._real = np.zeros((0, 3))
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
        return self._load[nic]

    def rate(self, flow: int) -> float:
        """Return the present rate of a flow in bytes per second."""
        self._refresh()
        return float(self._real[flow, RATE] * PS_PER_S)

    def start(
        self, now_ps: int, nics: tuple[int, int], wire_bytes: float, limit_bytes_per_s: float
    ) -> int:
        """Start a flow out of one NIC and into another, at most at its own limit; return it."""
        self._move_to(now_ps)
        if not self._free:
            self._grow(2 * len(self._place))
        flow = self._free.pop()
        whole, real = self._whole, self._real
        whole[flow, OUT], whole[flow, INTO] = nics
        real[flow, LEFT], real[flow, LIMIT] = wire_bytes, limit_bytes_per_s / PS_PER_S
        real[flow, RATE] = NEW
        for nic in nics:
            self._load[nic] += 1
        self._active[self._count] = flow
        self._place[flow] = self._count
        self._count += 1
        self._stale = True
        return flow

    def ended(self, now_ps: int) -> list[int]:
        """Take out the flows that have ended by now; return them in the order of their numbers."""
        if now_ps < self.next_ps:
            return []
        self._move_to(now_ps)
        active = self._active[: self._count]
        over: list[int] = active[self._whole[active, END] <= now_ps].tolist()
        over.sort()
        for flow in over:
            self._remove(flow)
        return over

    def stop(self, now_ps: int, flow: int) -> float:
        """Take out a flow before its end; return the bytes that it has not sent."""
        self._move_to(now_ps)
        self._remove(flow)
        return float(self._real[flow, LEFT])

    def set_share(self, now_ps: int, nic: int, share: float) -> None:
        """Let a directed NIC run at a share of its rate from now on; 0 stops it."""
        self._move_to(now_ps)
        self._capacity[nic] = self._nominal[nic] * share
        self._stale = True

    def _remove(self, flow: int) -> None:
        place = self._place[flow]
        self._count -= 1
        last = int(self._active[self._count])
        self._active[place] = last
        self._place[last] = place
        for nic in self._whole[flow, : INTO + 1].tolist():
            self._load[nic] -= 1
        self._free.append(flow)
        self._stale = True

    def _move_to(self, now_ps: int) -> None:
        """Let all flows progress up to now."""
        if now_ps < self._now:
            raise ValueError("the clock went back")
        if now_ps > self._now:
            self._refresh()
            progress(now_ps - self._now, self._active[: self._count], self._real)
            self._now = now_ps

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            active = self._active[: self._count]
            self._next = share(self._now, active, self._whole, self._real, self._capacity)

    def _grow(self, slots: int) -> None:
        more = slots - len(self._place)
        self._free.extend(range(slots - 1, slots - more - 1, -1))
        self._place += [0] * more
        self._active = np.concatenate([self._active, np.zeros(more, dtype=np.int64)])
        self._whole = np.concatenate([self._whole, np.zeros((more, 3), dtype=np.int64)])
        self._real = np.concatenate([self._real, np.zeros((more, 3))])


@compiled
def progress(elapsed_ps: int, active: Int64, real: Float64) -> None:
    """Take from what is left of each active flow what it has sent in the elapsed time."""
    for flow in active:
        real[flow, LEFT] = max(0.0, real[flow, LEFT] - real[flow, RATE] * elapsed_ps)


@compiled
def share(now_ps: int, active: Int64, whole: Int64, real: Float64, capacity: Float64) -> int:
    """Give the active flows their fair rates, renew the ends that move, return the first end.

    `whole` int64[slots, 3] and `real` float64[slots, 3] hold the columns named above.
    """
    fair = fair_rates(whole[active], real[active, LIMIT], capacity)
    first = NEVER_PS
    for i in range(len(active)):
        flow = active[i]
        if fair[i] != real[flow, RATE]:
            real[flow, RATE] = fair[i]
            whole[flow, END] = NEVER_PS
            if fair[i] > 0.0 and real[flow, LEFT] / fair[i] < _FARTHEST_PS - now_ps:
                whole[flow, END] = now_ps + math.ceil(real[flow, LEFT] / fair[i])
        first = min(first, whole[flow, END])
    return first


@compiled
def fair_rates(nic: Int64, limit: Float64, capacity: Float64) -> Float64:
    """Return the max-min fair rate of each flow by progressive filling.

    `nic` int64[flows, 2 or more] begins with the NICs that a flow leaves and enters by; `limit`
    float64[flows], `capacity` float64[NICs]. All rates rise together; those at their limit stop
    there, and when a NIC is full its flows stop. Cost: flows, plus full NICs times NICs in use.
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
