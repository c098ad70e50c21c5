"""The serving loop: arrivals, steps, and what happens between them.

SimPy owns what is irregular; between two of its events the compiled pipeline runs as many steps
as leave the batch unchanged. Requests are served first-come first-served with continuous
batching: each step carries at most one chunk budget of prefill beside the decode rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from oasis_sim.engine import log as columns
from oasis_sim.engine.batch import Job, Phase, rows_of
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.links import FifoLink
from oasis_sim.engine.log import BATCH_COLUMNS, StepRecorder
from oasis_sim.engine.pricing import price
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.service import Service
from oasis_sim.engine.state import NOW, new_marks, new_state
from oasis_sim.engine.stretch import LOG_EXTRA, Rows, run_stretch
from oasis_sim.engine.walks import Walks
from oasis_sim.engine.window import Window
from oasis_sim.errors import RunFailed

LONGEST_STRETCH = 256
NEVER_PS = 1 << 62
"""53 days: no run goes on as long, so that sums of times fit 64 bits."""

Progress = Callable[[int, int], None]


class ServingLoop:
    """Serve a workload on one GPU or one tensor-parallel group."""

    def __init__(
        self,
        cost: CostModel,
        plan: MemoryPlan,
        walks: Walks,
        book: RequestBook,
        window: Window,
        max_steps: int | None,
        progress: Progress | None,
    ) -> None:
        """Prepare an idle GPU; `run` does the work."""
        self.env = simpy.Environment(initial_time=0)
        self.cost = cost
        self.walks = walks
        self.book = book
        self.window = window
        self.recorder = StepRecorder()
        self.service = Service(cost, plan, book)
        self.offload_link = FifoLink(
            self.env, cost.profile.pcie.usable_bytes_per_s, cost.profile.pcie.latency_ps
        )
        self.state = new_state(cost.share.model.layers, walks.tables.ranks)
        self._max_steps = max_steps
        self._progress = progress
        self._wake: simpy.Event | None = None
        self._slot: simpy.Event | None = None
        self._arriving = True
        self._offloaded_bytes = 0
        # Both rows of a speculating request are copied, before it is known which of them stays.
        scheme = cost.scheme
        self._row_bytes = scheme.tokens_per_step_max * cost.share.host_bytes_token(scheme)

    def run(self) -> None:
        """Simulate until every request is done or `max_steps` steps have run."""
        self.env.process(self._arrivals())
        self.env.run(until=self.env.process(self._serve()))
        self.service.holdups.change(int(self.env.now), None)

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        for index in range(len(self.book)):
            delay = self.book.due_ps(index) - self.env.now
            if delay > 0:
                yield self.env.timeout(delay)
            while self.book.at_limit():
                self._slot = self.env.event()
                yield self._slot
            job = self.book.arrive(index, int(self.env.now), self.walks)
            if self.service.enter(job):
                self._signal()
        self._arriving = False
        self._signal()

    def _signal(self) -> None:
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        while not self._reached_limit():
            self.service.turn_sparse()
            self.service.admit(int(self.env.now))
            if self.service.idle:
                if not self._arriving and not self.service.waiting:
                    return
                yield self._sleep()
                continue
            self.service.make_room()
            if self.env.now >= NEVER_PS:
                raise RunFailed(
                    "the run takes more than 53 days of simulated time; make it smaller"
                )
            self.state.scalars[NOW] = self.env.now
            self._execute()
            yield self.env.timeout(int(self.state.scalars[NOW]) - self.env.now)
            self._settle()

    def _reached_limit(self) -> bool:
        return self._max_steps is not None and self.recorder.steps >= self._max_steps

    def _sleep(self) -> simpy.Event:
        """Return the event of the next arrival."""
        if self.service.waiting and self.env.peek() == float("inf"):
            raise RunFailed(
                f"request {self.service.waiting[0].index} can never be admitted; "
                "this is a fault of the simulator, please report it"
            )
        self._wake = self.env.event()
        return self._wake

    def _execute(self) -> None:
        """Run as many steps as leave the batch as it is, up to the next event."""
        service = self.service
        sparse = [job for job in service.running if job.phase is Phase.SPARSE]
        dense = [job for job in service.running if job.phase is Phase.DENSE]
        rows = rows_of(sparse, dense)
        prefill_ps, prefill_tokens = service.take_prefill()
        recording = self.window.wants(
            self.book.generated_total, self.recorder.steps, rows, prefill=prefill_ps > 0
        )
        count = 1 if prefill_ps or recording else service.longest_stretch(self._steps_left(rows))
        peek = self.env.peek()
        limit = int(min(peek, NEVER_PS))
        tables, marks = self.walks.tables, new_marks(self.state)
        times = np.empty((count, tables.log_columns), dtype=np.int64)
        quality = np.empty((count, tables.quality.shape[1]))
        places = rows.walk.copy(), rows.context.copy(), rows.dense_context.copy()
        used, most = service.hbm.used_bytes, self.cost.scheme.tokens_per_step_max
        growth = service.growth() // most
        costs = price(self.cost, rows, prefill_ps)
        done = run_stretch(self.state, rows, tables, costs, limit, times, quality, marks)
        if recording:
            mine = marks[self.walks.busiest]
            self.window.record(self.recorder.steps, sparse, dense, places, times[0], mine)
        times[done - 1, LOG_EXTRA] -= service.advance(sparse, dense, done, rows)
        batch = self._batch_record(done, len(sparse), len(dense))
        batch[:, columns.PREFILL_TOKENS] = prefill_tokens
        batch[-1, columns.FIRST_TOKENS] = service.finish_prefill(int(self.state.scalars[NOW]))
        batch[-1, columns.D2H_BYTES] += service.take_copied_bytes()
        batch[:, columns.HBM_BYTES] = used + growth * np.arange(1, done + 1)
        if most > 1 and sparse:
            extra = np.cumsum(times[:done, LOG_EXTRA])
            batch[:, columns.HBM_BYTES] += service.sizes.sparse_growth * extra
        self.recorder.add(times[:done], quality[:done], batch)
        if self._progress is not None:
            self._progress(self.book.generated_total, self.book.expected_total)

    def _steps_left(self, rows: Rows) -> int:
        """Return how many steps of these rows may run before the run or the window asks."""
        most = self.cost.scheme.tokens_per_step_max * len(rows.walk) + len(rows.dense_context)
        steps = self.recorder.steps
        left = min(
            LONGEST_STRETCH, self.window.room(self.book.generated_total, steps, max(1, most))
        )
        return left if self._max_steps is None else min(left, self._max_steps - steps)

    def _batch_record(self, steps: int, sparse: int, dense: int) -> npt.NDArray[np.int64]:
        """Return rows and host traffic of the steps just run, int64[steps, BATCH_COLUMNS]."""
        batch = np.zeros((steps, BATCH_COLUMNS), dtype=np.int64)
        batch[:, columns.SPARSE] = sparse
        batch[:, columns.DENSE] = dense
        batch[:, columns.HOST_BYTES] = self.service.host.used_bytes
        batch[:, columns.D2H_BYTES] = self._row_bytes * sparse
        batch[0, columns.D2H_BYTES] += self._offloaded_bytes
        self._offloaded_bytes = 0
        return batch

    def _settle(self) -> None:
        """At a step's end: let finished requests go, start to offload those over the budget."""
        if ended := self.service.let_go(int(self.env.now)):
            if self.book.think_ps:
                self.env.process(self._think(ended))
            else:
                self._give_places(ended)
        for job in self.service.over_budget():
            if self.cost.scheme.offload:
                self.env.process(self._offload(job))
            else:
                self.service.copied.append(job)

    def _think(self, count: int) -> Generator[simpy.Event, Any, None]:
        """Let clients of a closed loop think before they send their next requests."""
        yield self.env.timeout(self.book.think_ps)
        self._give_places(count)

    def _give_places(self, count: int) -> None:
        self.book.give_places(count)
        if self._slot is not None:
            self._slot.succeed()
            self._slot = None

    def _offload(self, job: Job) -> Generator[simpy.Event, Any, None]:
        """Copy a request's KV to the host; it turns sparse at the next step's start."""
        size = job.context * self.service.sizes.host_token
        self._offloaded_bytes += size
        life = job.preemptions
        yield self.offload_link.send(size)
        if job.preemptions == life and job.phase is Phase.DENSE:
            self.service.copied.append(job)
