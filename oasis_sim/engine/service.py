"""Requests in service: who is admitted, what they hold of each memory, who has to yield."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.batch import Job, Phase
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import Pool, footprint
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan


class Service:
    """Hold the queues of one GPU and the pools of memory that their requests fill.

    `waiting` is served first-come first-served, `prefilling` and `running` are in order of
    admission. Every change of what a request holds goes through here and through a `Pool`, which
    refuses to hold more than it can.
    """

    def __init__(self, cost: CostModel, plan: MemoryPlan, book: RequestBook) -> None:
        """Start empty, with the memory that `plan` resolved."""
        self.cost = cost
        self.book = book
        self.sizes = footprint(cost)
        self.hbm = Pool("HBM pool for KV", plan.kv_pool_bytes)
        self.host = Pool("host memory for KV", plan.host_capacity_bytes)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.running: list[Job] = []
        self.copied: list[Job] = []
        self.prefill_flops = 0.0

    @property
    def idle(self) -> bool:
        """Say whether there is nothing to compute."""
        return not self.prefilling and not self.running

    def enter(self, job: Job) -> bool:
        """Queue a request, or refuse one that cannot fit even alone."""
        final = job.prompt + job.output
        offload = self.cost.scheme.offload
        dense = self.sizes.dense_bytes(job.prompt if offload else final)
        peak = max(dense, self.sizes.sparse_bytes(final)) if offload else dense
        host = self.sizes.host_bytes(final)
        if peak > self.hbm.capacity_bytes or host > self.host.capacity_bytes:
            self.book.reject(job, peak, self.hbm.capacity_bytes, host, self.host.capacity_bytes)
            return False
        self.waiting.append(job)
        return True

    def admit(self, now_ps: int) -> None:
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
            self.book.admitted(job, now_ps)
            self.prefilling.append(job)
            queued += job.target

    def turn_sparse(self) -> None:
        """Shrink requests whose KV has arrived in host memory to their working set."""
        left = []
        for job in self.copied:
            if job.phase is not Phase.DENSE:
                continue
            delta = self.sizes.sparse_bytes(job.context) - job.hbm_bytes
            if delta > self.hbm.free_bytes:
                left.append(job)
                continue
            job.phase, job.offloading = Phase.SPARSE, False
            self.hbm.change(delta)
            job.hbm_bytes += delta
        self.copied = left

    def make_room(self) -> None:
        """Preempt the newest running requests until one more step fits; they recompute later."""
        while self.running and self.growth() > self.hbm.free_bytes:
            job = self.running.pop()
            self._release(job)
            job.phase, job.offloading = Phase.WAITING, False
            job.preemptions += 1
            job.target, job.context = job.prompt + job.generated, 0
            self.book.preempted(job)
            self.waiting.appendleft(job)

    def growth(self) -> int:
        """Return the HBM bytes that the next step adds."""
        return sum(job.growth(self.sizes) for job in self.running)

    def longest_stretch(self, limit: int) -> int:
        """Return how many steps, at most `limit`, cannot change the batch by themselves."""
        count = min(limit, *(job.remaining for job in self.running))
        count = min(count, self.hbm.free_bytes // max(self.growth(), 1))
        if self.cost.scheme.offload:
            edge = self.cost.scheme.attended_tokens_max
            for job in self.running:
                if job.phase is Phase.DENSE and not job.offloading:
                    count = min(count, max(1, edge - job.context))
        return count

    def take_prefill(self) -> tuple[int, int]:
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

    def advance(
        self, sparse: list[Job], dense: list[Job], steps: int, walk: npt.NDArray[np.int64]
    ) -> None:
        """Let every row generate `steps` tokens; sparse rows are now at `walk`."""
        for job, place in zip(sparse, walk.tolist(), strict=True):
            job.walk = place
        for job in (*sparse, *dense):
            job.context += steps
            job.generated += steps
            grown = job.growth(self.sizes) * steps
            job.hbm_bytes += grown
            self.hbm.change(grown)
        self.book.generated_total += steps * (len(sparse) + len(dense))

    def finish_prefill(self, now_ps: int) -> int:
        """Move requests whose prefill is complete to decode; return how many got a token."""
        ready = [job for job in self.prefilling if job.context == job.target]
        self.prefilling = [job for job in self.prefilling if job.context < job.target]
        for job in ready:
            job.phase = Phase.DENSE
            job.generated += 1
            self.book.first_token(job, now_ps)
            self.running.append(job)
        self.book.generated_total += len(ready)
        return len(ready)

    def let_go(self, now_ps: int) -> bool:
        """Release finished requests; say whether there were any."""
        done = [job for job in self.running if job.remaining == 0]
        self.running = [job for job in self.running if job.remaining > 0]
        for job in done:
            self._release(job)
            job.phase = Phase.DONE
            self.book.finished(job, now_ps)
        return bool(done)

    def over_budget(self) -> list[Job]:
        """Return the dense requests that have outgrown the token budget, marked as offloading."""
        if not self.cost.scheme.offload:
            return []
        edge = self.cost.scheme.attended_tokens_max
        found = [
            job
            for job in self.running
            if job.phase is Phase.DENSE and not job.offloading and job.context > edge
        ]
        for job in found:
            job.offloading = True
        return found

    def _release(self, job: Job) -> None:
        self.hbm.change(-job.hbm_bytes)
        self.host.change(-job.host_bytes)
        job.hbm_bytes = job.host_bytes = 0
