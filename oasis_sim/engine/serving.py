"""The serving loop: arrivals, admission, prefill, the switch to sparse, batching, preemption.

SimPy owns what is irregular; between two of its events the compiled pipeline runs as many steps
as leave the batch unchanged. Requests are served first-come first-served with continuous
batching: each step carries at most one chunk budget of prefill beside the decode rows.
"""

from __future__ import annotations

from collections import deque
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
from oasis_sim.engine.memory import Footprint, Pool, footprint
from oasis_sim.engine.pipeline import NOW, new_state
from oasis_sim.engine.pricing import price
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.stretch import LOG_COLUMNS, run_stretch
from oasis_sim.engine.walks import Walks
from oasis_sim.engine.window import Window
from oasis_sim.errors import RunFailed

LONGEST_STRETCH = 256
NEVER_PS = 1 << 62

Progress = Callable[[int, int], None]


class ServingLoop:
    """Serve a workload on one GPU (or one tensor-parallel group, of which it follows one GPU)."""

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
        self.env = simpy.Environment(initial_time=0)
        self.cost = cost
        self.walks = walks
        self.book = book
        self.window = window
        self.recorder = StepRecorder()
        self.sizes: Footprint = footprint(cost)
        self.hbm = Pool("HBM pool for KV", plan.kv_pool_bytes)
        self.host = Pool("host memory for KV", plan.host_capacity_bytes)
        self.offload_link = FifoLink(
            self.env, cost.profile.pcie.usable_bytes_per_s, cost.profile.pcie.latency_ps
        )
        self.state = new_state(cost.share.model.layers)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.running: list[Job] = []
        self._max_steps = max_steps
        self._progress = progress
        self._wake: simpy.Event | None = None
        self._slot: simpy.Event | None = None
        self._arriving = True
        self._copied: list[Job] = []
        self._offloaded_bytes = 0
        self.prefill_flops = 0.0

    def run(self) -> None:
        """Simulate until every request is done or `max_steps` steps have run."""
        self.env.process(self._arrivals())
        self.env.run(until=self.env.process(self._serve()))

    # Arrivals -------------------------------------------------------------------------------

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        for index in range(len(self.book)):
            delay = self.book.due_ps(index) - self.env.now
            if delay > 0:
                yield self.env.timeout(delay)
            while self.book.at_limit():
                self._slot = self.env.event()
                yield self._slot
            self._arrive(index)
        self._arriving = False
        self._signal()

    def _arrive(self, index: int) -> None:
        job = self.book.arrive(index, int(self.env.now), self.walks)
        final = job.prompt + job.output
        offload = self.cost.scheme.offload
        dense = self.sizes.dense_bytes(job.prompt if offload else final)
        peak = max(dense, self.sizes.sparse_bytes(final)) if offload else dense
        host = self.sizes.host_bytes(final)
        if peak > self.hbm.capacity_bytes or host > self.host.capacity_bytes:
            self.book.reject(job, peak, self.hbm.capacity_bytes, host, self.host.capacity_bytes)
            return
        self.waiting.append(job)
        self._signal()

    def _signal(self) -> None:
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    # The loop -------------------------------------------------------------------------------

    def _serve(self) -> Generator[simpy.Event, Any, None]:
        while not self._reached_limit():
            self._turn_sparse()
            self._admit()
            if not self.prefilling and not self.running:
                if not self._arriving and not self.waiting:
                    return
                if self.waiting and not self._pending():
                    raise RunFailed(
                        f"request {self.waiting[0].index} can never be admitted; "
                        "this is a fault of the simulator, please report it"
                    )
                self._wake = self.env.event()
                yield self._wake
                continue
            self._make_room()
            self.state.scalars[NOW] = self.env.now
            self._execute()
            yield self.env.timeout(int(self.state.scalars[NOW]) - self.env.now)
            self._settle()

    def _reached_limit(self) -> bool:
        return self._max_steps is not None and self.recorder.steps >= self._max_steps

    def _pending(self) -> bool:
        return self.env.peek() != float("inf")

    def _admit(self) -> None:
        """Admit in order while prefill has room in the coming step and memory suffices."""
        chunk = self.cost.costs.prefill.chunk_tokens
        queued = sum(job.target - job.context for job in self.prefilling)
        while self.waiting and queued < chunk:
            job = self.waiting[0]
            need = self.sizes.dense_bytes(job.target)
            host = self.sizes.host_bytes(job.prompt + job.output)
            if need > self.hbm.free_bytes or host > self.host.free_bytes:
                return
            self.waiting.popleft()
            job.phase = Phase.PREFILL
            job.hbm_bytes, job.host_bytes = need, host
            self.hbm.change(need)
            self.host.change(host)
            self.book.admitted(job, int(self.env.now))
            self.prefilling.append(job)
            queued += job.target

    def _turn_sparse(self) -> None:
        """Shrink requests whose KV has arrived in host memory to their working set."""
        left = []
        for job in self._copied:
            if job.phase is not Phase.DENSE:
                continue
            delta = self.sizes.sparse_bytes(job.context) - job.hbm_bytes
            if delta > self.hbm.free_bytes:
                left.append(job)
                continue
            job.phase, job.offloading = Phase.SPARSE, False
            self.hbm.change(delta)
            job.hbm_bytes += delta
        self._copied = left

    def _offload(self, job: Job) -> Generator[simpy.Event, Any, None]:
        size = job.context * self.sizes.host_token
        self._offloaded_bytes += size
        life = job.preemptions
        yield self.offload_link.send(size)
        if job.preemptions == life and job.phase is Phase.DENSE:
            self._copied.append(job)

    def _make_room(self) -> None:
        """Preempt the newest running requests until one more step fits; they recompute later."""
        while self.running and self._growth() > self.hbm.free_bytes:
            job = self.running.pop()
            self._release(job)
            job.phase, job.offloading = Phase.WAITING, False
            job.preemptions += 1
            job.target, job.context = job.prompt + job.generated, 0
            self.book.preempted(job)
            self.waiting.appendleft(job)

    def _growth(self) -> int:
        return sum(job.growth(self.sizes) for job in self.running)

    def _release(self, job: Job) -> None:
        self.hbm.change(-job.hbm_bytes)
        self.host.change(-job.host_bytes)
        job.hbm_bytes = job.host_bytes = 0

    # Steps ----------------------------------------------------------------------------------

    def _execute(self) -> None:
        """Run as many steps as leave the batch as it is, up to the next event."""
        sparse = [job for job in self.running if job.phase is Phase.SPARSE]
        dense = [job for job in self.running if job.phase is Phase.DENSE]
        rows = rows_of(sparse, dense)
        prefill_ps, prefill_tokens = self._take_prefill()
        recording = self.window.wants(self.book.generated_total, self.recorder.steps, rows)
        count = 1 if prefill_ps or recording else self._longest()
        peek = self.env.peek()
        limit = NEVER_PS if peek == float("inf") else int(peek)
        times = np.empty((count, LOG_COLUMNS), dtype=np.int64)
        quality = np.empty((count, self.walks.tables.quality.shape[1]))
        marks = self.window.marks()
        places = rows.walk.copy(), rows.context.copy(), rows.dense_context.copy()
        costs = price(self.cost, rows, prefill_ps)
        used, growth = self.hbm.used_bytes, self._growth()
        done = run_stretch(self.state, rows, self.walks.tables, costs, limit, times, quality, marks)
        times, quality = times[:done], quality[:done]
        if recording:
            self.window.record(self.recorder.steps, sparse, dense, places, times[0], marks)
        self._advance(sparse, dense, done, rows.walk)
        finished = self._finish_prefill()
        batch = np.zeros((done, BATCH_COLUMNS), dtype=np.int64)
        batch[:, columns.SPARSE] = len(sparse)
        batch[:, columns.DENSE] = len(dense)
        batch[:, columns.PREFILL_TOKENS] = prefill_tokens
        batch[-1, columns.FIRST_TOKENS] = finished
        batch[:, columns.HBM_BYTES] = used + growth * np.arange(1, done + 1)
        batch[:, columns.HOST_BYTES] = self.host.used_bytes
        batch[:, columns.D2H_BYTES] = len(sparse) * self.cost.share.kv_bytes_token
        batch[0, columns.D2H_BYTES] += self._offloaded_bytes
        self._offloaded_bytes = 0
        self.recorder.add(times, quality, batch)
        if self._progress is not None:
            self._progress(self.book.generated_total, self.book.expected_total)

    def _longest(self) -> int:
        """Return how many steps cannot change the batch by themselves."""
        count = min(LONGEST_STRETCH, *(job.remaining for job in self.running))
        if self._max_steps is not None:
            count = min(count, self._max_steps - self.recorder.steps)
        count = min(count, self.hbm.free_bytes // max(self._growth(), 1))
        if self.cost.scheme.offload:
            edge = self.cost.scheme.attended_tokens_max
            for job in self.running:
                if job.phase is Phase.DENSE and not job.offloading:
                    count = min(count, max(1, edge - job.context))
        return count

    def _take_prefill(self) -> tuple[int, int]:
        """Fill the step's chunk budget in order; return its time and its tokens."""
        budget = self.cost.costs.prefill.chunk_tokens
        time_ps = tokens = 0
        for job in self.prefilling:
            part = min(job.target - job.context, budget - tokens)
            if part > 0:
                time_ps += self.cost.prefill_ps(job.context, part)
                self.prefill_flops += self.cost.prefill_flops(job.context, part)
                job.context += part
                tokens += part
        return time_ps, tokens

    def _advance(
        self, sparse: list[Job], dense: list[Job], done: int, walk: npt.NDArray[np.int64]
    ) -> None:
        for job, place in zip(sparse, walk.tolist(), strict=True):
            job.walk = place
        for job in (*sparse, *dense):
            job.context += done
            job.generated += done
            grown = job.growth(self.sizes) * done
            job.hbm_bytes += grown
            self.hbm.change(grown)
        self.book.generated_total += done * (len(sparse) + len(dense))

    def _finish_prefill(self) -> int:
        """Move requests whose prefill is complete to decode; return how many got a token."""
        ready = [job for job in self.prefilling if job.context == job.target]
        self.prefilling = [job for job in self.prefilling if job.context < job.target]
        for job in ready:
            job.phase = Phase.DENSE
            job.generated += 1
            self.book.first_token(job, int(self.state.scalars[NOW]))
            self.running.append(job)
        self.book.generated_total += len(ready)
        return len(ready)

    def _settle(self) -> None:
        """At a step's end: let finished requests go, start to offload those over the budget."""
        done = [job for job in self.running if job.remaining == 0]
        if done:
            self.running = [job for job in self.running if job.remaining > 0]
            for job in done:
                self._release(job)
                job.phase = Phase.DONE
                self.book.finished(job, int(self.env.now))
            if self._slot is not None:
                self._slot.succeed()
                self._slot = None
        if not self.cost.scheme.offload:
            return
        for job in self.running:
            over = job.context > self.cost.scheme.attended_tokens_max
            if job.phase is Phase.DENSE and not job.offloading and over:
                job.offloading = True
                self.env.process(self._offload(job))
