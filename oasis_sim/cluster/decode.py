"""A decode node: its memory, its rows, and its steps on the simulated clock.

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

from oasis_sim.cluster.rows import NodeRows
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.cluster.steps import REMOTE_COLUMNS, FetchCosts, StepOut, run_remote_stretch
from oasis_sim.cluster.visit import Stage, Visit
from oasis_sim.engine.memory import Pool
from oasis_sim.engine.pricing import price
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.serving import NEVER_PS
from oasis_sim.engine.state import NOW, OUT_END, new_state
from oasis_sim.engine.stretch import StretchCosts
from oasis_sim.engine.walks import Walks
from oasis_sim.errors import RunFailed

STEPS_AHEAD = 32
LONGEST_PRICE = 256
"""Prices hold for so many steps of the same rows, as in `serving`."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Hooks(NamedTuple):
    """Say what a node calls.

    `fetch` for the price of coming fetches, `commit` with the log and quality sums of steps that
    are over, `ended` with each request that is, `dropped` with those that `drop` has taken out.
    """

    fetch: Callable[[DecodeNode], FetchCosts]
    commit: Callable[[DecodeNode, Int64, Float64], None]
    ended: Callable[[Visit], None]
    dropped: Callable[[Visit], None]


class DecodeNode:
    """Decode what arrives, one step after the other.

    `waiting` are requests that a prefill node has ready but for which there is no room yet;
    `arrived` join at the next step.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        sizes: NodeSizes,
        plan: MemoryPlan,
        walks: Walks,
        hooks: Hooks,
    ) -> None:
        """Prepare an idle node; `run` is its process."""
        self.number = number
        self.hbm = Pool(f"HBM pool of decode node {number}", plan.kv_pool_bytes)
        self.host = Pool(f"host memory of decode node {number}", plan.host_capacity_bytes)
        self.waiting: deque[Visit] = deque()
        self.arrived: list[Visit] = []
        self.first_tokens = 0
        self.stalled_ps = 0
        self.assigned_tokens = 0
        self.rows = NodeRows(len(walks.tables.group_size))
        self._env, self._sizes, self._walks, self._hooks = env, sizes, walks, hooks
        self._state = new_state(sizes.cost.share.model.layers)
        self._poke: simpy.Event | None = None
        self._stall_ps = 0
        self._leaving: set[int] = set()
        self._since = np.zeros(0, dtype=np.int64)
        self._prices: StretchCosts | None = None
        self._priced = 0

    def poke(self) -> None:
        """Say that something has changed that the next step must see."""
        if self._poke is not None and not self._poke.triggered:
            self._poke.succeed()

    def stall(self, time_ps: int) -> None:
        """Let the node stand still for a time from the next step boundary on."""
        self._stall_ps = max(self._stall_ps, time_ps)
        self.poke()

    def drop(self, visits: list[Visit]) -> None:
        """Take requests out of the batch at the next step boundary, after any stall."""
        self._leaving.update(visit.job.index for visit in visits)
        self.poke()

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Decode for ever."""
        while True:
            if self._stall_ps:
                stall, self._stall_ps = self._stall_ps, 0
                self.stalled_ps += stall
                yield self._env.timeout(stall)
            self._change_rows()
            self._poke = self._env.event()
            if not self.rows.visits:
                yield self._poke
                continue
            yield from self._steps()
            self._let_go()

    def _steps(self) -> Generator[simpy.Event, Any, None]:
        """Run steps until one of the rows ends, some have run, or something comes in."""
        self._state.scalars[NOW] = self._env.now
        self._renew_prices()
        count = min(STEPS_AHEAD, int(self.rows.left.min()), LONGEST_PRICE - self._priced)
        before = self.rows.save(), [array.copy() for array in self._state]
        fetch = self._hooks.fetch(self)
        log, quality = self._execute(count, fetch)
        poke = self._poke
        assert poke is not None
        over = self._env.timeout(int(log[-1, OUT_END]) - int(self._env.now))
        yield over | poke
        self._poke = None
        if self._env.now < log[-1, OUT_END]:
            needed = int(np.searchsorted(log[:, OUT_END], self._env.now)) + 1
            if needed < count:
                self.rows.restore(before[0])
                for array, old in zip(self._state, before[1], strict=True):
                    array[:] = old
                log, quality = self._execute(needed, fetch)
            yield self._env.timeout(int(log[-1, OUT_END]) - int(self._env.now))
        self._since += len(log)
        self._priced += len(log)
        self.rows.left -= len(log)
        self._hooks.commit(self, log, quality)

    def _renew_prices(self) -> None:
        """Price the rows anew when they have changed, or have run long enough."""
        if self._prices is None or self._priced == LONGEST_PRICE:
            self._prices, self._priced = price(self._sizes.cost, self.rows.rows, 0), 0

    def _execute(self, count: int, fetch: FetchCosts) -> tuple[Int64, Float64]:
        """Run steps in compiled code; return their log and their quality sums."""
        assert self._prices is not None
        tables = self._walks.tables
        log = np.empty((count, REMOTE_COLUMNS), dtype=np.int64)
        quality = np.empty((count, tables.quality.shape[1]))
        marks = np.zeros((len(self._state.transfer_end), 12), dtype=np.int64)
        run_remote_stretch(
            self._state,
            self.rows.rows,
            tables,
            self._prices,
            self.rows.remote,
            fetch,
            StepOut(log, quality, marks),
        )
        if log[-1, OUT_END] >= NEVER_PS:
            raise RunFailed("the run takes more than 53 days of simulated time; make it smaller")
        return log, quality

    def _change_rows(self) -> None:
        """Let those that have arrived join and those that leave go."""
        if not self.arrived and not self._leaving:
            return
        self._settle()
        leaving = [v for v in self.rows.visits if v.job.index in self._leaving]
        stay = [v for v in self.rows.visits if v.job.index not in self._leaving]
        self._leaving.clear()
        arrived, self.arrived = self.arrived, []
        for visit in arrived:
            visit.stage = Stage.DECODING
        self._take([*stay, *arrived])
        for visit in leaving:
            self._hooks.dropped(visit)

    def _let_go(self) -> None:
        """Let the requests go that have all their tokens."""
        done = np.flatnonzero(self.rows.left == 0)
        if not len(done):
            return
        self._settle()
        ended = [self.rows.visits[place] for place in done]
        self._take([visit for visit in self.rows.visits if visit.job.remaining > 0])
        for visit in ended:
            self._hooks.ended(visit)

    def _settle(self) -> None:
        self.rows.settle(self._since)

    def _take(self, visits: list[Visit]) -> None:
        sparse = frozenset(v.job.index for v in visits if self._sizes.is_sparse(v.job.prompt))
        self.rows.rebuild(visits, sparse)
        self._since = np.zeros(len(visits), dtype=np.int64)
        self._prices = None
