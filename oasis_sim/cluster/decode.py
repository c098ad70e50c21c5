"""A decode node: its memory, its batch, and its steps on the simulated clock.

Nothing outside changes a step that has begun. So a node runs some steps ahead and waits until they
are over; when something comes in meanwhile it goes back and runs only those up to the first step
boundary from then on. Which steps run, and when, does not depend on how far ahead it ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simpy

from oasis_sim.cluster.batch import Batch
from oasis_sim.cluster.nodelog import NodeLog
from oasis_sim.cluster.rows import Tables
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.cluster.steps import FetchCosts
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.memory import Pool
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.state import OUT_END
from oasis_sim.engine.walks import Walks

STEPS_AHEAD = 32

Int64 = npt.NDArray[np.int64]


class Hooks(NamedTuple):
    """Say what a node calls.

    `fetch` for the price of coming fetches, `ended` with each request that has all its tokens,
    `progress` with tokens.
    """

    fetch: Callable[[DecodeNode], FetchCosts]
    ended: Callable[[Visit], None]
    progress: Callable[[int], None]


class DecodeNode:
    """Decode what arrives, one step after the other.

    `waiting` are requests that a prefill node has ready and that are not sent yet: `lacking` names
    the memory that has no room for the first of them, if any. `sending` are on their way;
    `arrived` join at the next step.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        sizes: NodeSizes,
        plan: MemoryPlan,
        walks: Walks,
        tables: Tables,
        hooks: Hooks,
    ) -> None:
        """Prepare an idle node; `run` is its process."""
        self.number = number
        self.hbm = Pool(f"HBM pool of decode node {number}", plan.kv_pool_bytes)
        self.host = Pool(f"host memory of decode node {number}", plan.host_capacity_bytes)
        self.waiting: deque[Visit] = deque()
        self.lacking: str | None = None
        self.sending = 0
        self.arrived: list[Visit] = []
        self.log = NodeLog(sizes)
        self.batch = Batch(sizes, walks, tables)
        self.stalled_ps = 0
        self._env, self._hooks = env, hooks
        self._poke: simpy.Event | None = None
        self._stall_ps = 0
        self._leaving: dict[int, Callable[[Visit], None]] = {}

    def poke(self) -> None:
        """Say that something has changed that the next step must see."""
        if self._poke is not None and not self._poke.triggered:
            self._poke.succeed()

    def shortage(self, visit: Visit) -> str | None:
        """Name the memory that has no room for a request, if any."""
        if visit.hbm_bytes > self.hbm.free_bytes:
            return "hbm"
        return "host" if visit.host_bytes > self.host.free_bytes else None

    def stall(self, time_ps: int) -> None:
        """Let the node stand still for a time from the next step boundary on."""
        self._stall_ps = max(self._stall_ps, time_ps)
        self.poke()

    def drop(self, visits: list[Visit], dropped: Callable[[Visit], None]) -> None:
        """Take requests out of the batch at the next step boundary, after any stall.

        `dropped` is called with each of them that has not ended until then.
        """
        self._leaving.update((visit.job.index, dropped) for visit in visits)
        self.poke()

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Decode for ever."""
        while True:
            if self._stall_ps:
                stall, self._stall_ps = self._stall_ps, 0
                self.stalled_ps += stall
                yield self._env.timeout(stall)
            self._change_batch()
            self._poke = self._env.event()
            if not self.batch.visits:
                yield self._poke
                continue
            yield from self._steps()
            for visit in self.batch.take_ended():
                self._hooks.ended(visit)

    def _steps(self) -> Generator[simpy.Event, Any, None]:
        """Run steps until one of the rows ends, some have run, or something comes in."""
        self.batch.start(int(self._env.now))
        count = min(STEPS_AHEAD, self.batch.longest())
        before, fetch, poke = self.batch.save(), self._hooks.fetch(self), self._poke
        log, quality = self.batch.execute(count, fetch)
        assert poke is not None
        over = self._env.timeout(int(log[-1, OUT_END]) - int(self._env.now))
        yield over | poke
        self._poke = None
        if self._env.now < log[-1, OUT_END]:
            needed = int(np.searchsorted(log[:, OUT_END], self._env.now)) + 1
            if needed < count:
                self.batch.restore(before)
                log, quality = self.batch.execute(needed, fetch)
            yield self._env.timeout(int(log[-1, OUT_END]) - int(self._env.now))
        self.batch.count(len(log))
        self.log.add(log, quality, self.batch.rows, self.hbm.used_bytes)
        self._hooks.progress(len(log) * len(self.batch.visits))

    def _change_batch(self) -> None:
        """Let those that have arrived join and those that leave go."""
        if not self.arrived and not self._leaving:
            return
        arrived, self.arrived = self.arrived, []
        for visit in arrived:
            self.log.join(visit.held_bytes)
        leaving, self._leaving = self._leaving, {}
        for visit in self.batch.join(arrived, set(leaving)):
            leaving[visit.job.index](visit)
