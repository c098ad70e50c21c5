"""All-reduces between threads without a GPU, and their failures."""

from __future__ import annotations

import threading
from typing import Any

from oasis_sim.errors import RunFailed

STUCK_SECONDS = 20.0


class FakeGroup:
    """Follow the interface of `gpu_exec.nccl.NcclGroup` with tensors on the CPU.

    A rank waits for the others, as a kernel on a GPU does; `fault` spoils the sums: "deaf" leaves a
    rank with what it had, "late" gives it the sum of the all-reduce before.
    """

    version = "0.fake"
    fault = ""
    opened: list[FakeGroup] = []  # noqa: RUF012 - tests look at the groups that were made

    def __init__(self, devices: int) -> None:
        """Join some threads."""
        self.ranks = devices
        self.sums = 0
        self.state = "open"
        self._held: dict[int, Any] = {}
        self._last: Any = None
        self._barrier = threading.Barrier(devices, timeout=STUCK_SECONDS)
        FakeGroup.opened.append(self)

    def all_reduce(self, rank: int, x: Any) -> None:
        """Sum over the threads, in place; raises RunFailed once the group is aborted."""
        try:
            self._held[rank] = x.clone()
            self._barrier.wait()
            total = sum(self._held[other] for other in range(self.ranks))
            if rank == 0:
                self.sums += 1
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RunFailed("an all-reduce was aborted") from None
        if self.fault == "late" and rank == 1 and self._last is not None:
            x.copy_(self._last)
        elif self.fault != "deaf" or rank != 1:
            x.copy_(total)
        if rank == 1:
            self._last = total

    def abort(self) -> None:
        """Let go of those that wait."""
        self.state = "aborted"
        self._barrier.abort()

    def close(self) -> None:
        """Leave."""
        if self.state == "open":
            self.state = "closed"
