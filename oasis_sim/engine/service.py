"""Requests in service: who is admitted, what they hold of each memory, who has to yield."""

from __future__ import annotations

from collections import deque

from oasis_sim.engine.batch import Job, Phase
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.holdups import Holdups
from oasis_sim.engine.memory import Pool, footprint, shortage
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.stretch import Rows
from oasis_sim.errors import RunFailed


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
        self.holdups = Holdups()
        self.prefill_flops = 0.0
        self._copied_bytes = 0
        self._batch_lacks: str | None = None

    @property
    def idle(self) -> bool:
        """Say whether there is nothing to compute."""
        return not self.prefilling and not self.running

    def enter(self, job: Job) -> bool:
        """Queue a request, or refuse one that cannot fit even alone."""
        final = job.prompt + job.output
        peak = max(self._prefill_bytes(job), self._last_bytes(final))
        host = self.sizes.host_bytes(final)
        if peak > self.hbm.capacity_bytes or host > self.host.capacity_bytes:
            self.book.reject(job, peak, self.hbm.capacity_bytes, host, self.host.capacity_bytes)
            return False
        self.waiting.append(job)
        return True

    def admit(self, now_ps: int) -> None:
        """Admit in order while prefill has room in the coming step and memory suffices.

        A static batch is admitted whole, when the one before has ended.
        """
        static = self.cost.costs.static_batches
        lacking = self._admit_batch(now_ps) if static else self._admit_singly(now_ps)
        self.holdups.change(now_ps, lacking or self._why_no_more(now_ps))

    def _admit_singly(self, now_ps: int) -> str | None:
        """Admit requests one after the other; return the memory that refused one, if any."""
        chunk = self.cost.costs.prefill.chunk_tokens
        queued = sum(job.target - job.context for job in self.prefilling)
        while self.waiting and queued < chunk:
            job = self.waiting[0]
            if self.sizes.host_bytes(job.prompt + job.output) > self.host.free_bytes:
                return "host"
            if self._prefill_bytes(job) > self.hbm.free_bytes:
                return "hbm"
            self._start(self.waiting.popleft(), now_ps)
            queued += job.target
        return None

    def _why_no_more(self, now_ps: int) -> str:
        """Say why no more requests are in service, where memory has not refused one."""
        if self.waiting:
            return "prefill"
        due = self.book.next_due_ps
        if due is None:
            return "requests"
        return "concurrency" if self.book.concurrency and due <= now_ps else "arrivals"

    def _admit_batch(self, now_ps: int) -> str | None:
        """Admit as many as the client sends at once; without a limit, as many as fit.

        Return the memory that keeps the others waiting, if any. Raises RunFailed, with the
        arithmetic, when a batch of the asked size does not fit.
        """
        if not self.waiting:
            return None
        if not self.idle:
            return self._batch_lacks
        limit = self.book.concurrency
        size = len(self.waiting) if limit is None else min(limit, len(self.waiting))
        batch = list(self.waiting)[:size]
        self._batch_lacks = None
        if limit is None:
            while len(batch) > 1 and not self._batch_fits(batch):
                hbm, _ = self._batch_bytes(batch)
                self._batch_lacks = "hbm" if hbm > self.hbm.capacity_bytes else "host"
                batch.pop()
        elif not self._batch_fits(batch):
            hbm, host = self._batch_bytes(batch)
            room = self.hbm.capacity_bytes, self.host.capacity_bytes
            lacking, _ = shortage(hbm, room[0], host, room[1])
            raise RunFailed(
                f"a static batch of {size:,} requests does not fit: it needs {lacking}; "
                "lower the concurrency (--concurrency)"
            )
        for _ in batch:
            self._start(self.waiting.popleft(), now_ps)
        return self._batch_lacks

    def _batch_bytes(self, batch: list[Job]) -> tuple[int, int]:
        """Return the most HBM and host bytes that a static batch holds at once."""
        final = [job.prompt + job.output for job in batch]
        start = sum(self._prefill_bytes(job) for job in batch)
        end = sum(self._last_bytes(length) for length in final)
        return max(start, end), sum(self.sizes.host_bytes(length) for length in final)

    def _batch_fits(self, batch: list[Job]) -> bool:
        hbm, host = self._batch_bytes(batch)
        return hbm <= self.hbm.capacity_bytes and host <= self.host.capacity_bytes

    def _last_bytes(self, length: int) -> int:
        """Return the HBM bytes of a request that ends with `length` tokens."""
        scheme = self.cost.scheme
        sparse = scheme.selects and length > scheme.attended_tokens_max
        return self.sizes.sparse_bytes(length) if sparse else self.sizes.dense_bytes(length)

    def _prefill_bytes(self, job: Job) -> int:
        """Return the HBM bytes that a request takes until its prefill is over."""
        whole = self.sizes.dense_bytes(job.target)
        if not self._leaves_in_prefill(job):
            return whole
        after = self.sizes.sparse_bytes(job.target)
        return after if self.cost.scheme.offload_at == "layer" else max(whole, after)

    def _leaves_in_prefill(self, job: Job) -> bool:
        """Say whether a request's KV has left HBM when it starts to decode."""
        scheme = self.cost.scheme
        return scheme.offload_at != "decode" and job.target > scheme.attended_tokens_max

    def _start(self, job: Job, now_ps: int) -> None:
        """Give a request its memory and begin its prefill."""
        job.phase = Phase.PREFILL
        job.hbm_bytes = self._prefill_bytes(job)
        job.host_bytes = self.sizes.host_bytes(job.prompt + job.output)
        self.hbm.change(job.hbm_bytes)
        self.host.change(job.host_bytes)
        self.book.admitted(job, now_ps)
        self.prefilling.append(job)

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
        """Return the most HBM bytes that the next step adds."""
        sparse = [job.phase for job in self.running].count(Phase.SPARSE)
        dense = len(self.running) - sparse
        grown = sparse * self.sizes.sparse_growth + dense * self.sizes.dense_growth
        return self.cost.scheme.tokens_per_step_max * grown

    def longest_stretch(self, limit: int) -> int:
        """Return how many steps, at most `limit`, cannot change the batch by themselves."""
        most = self.cost.scheme.tokens_per_step_max
        count = min(limit, max(1, min(job.remaining for job in self.running) // most))
        count = min(count, self.hbm.free_bytes // max(self.growth(), 1))
        if self.cost.scheme.selects:
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

    def advance(self, sparse: list[Job], dense: list[Job], steps: int, rows: Rows) -> int:
        """Let every row generate what its `rows` gained in `steps` steps.

        Return the tokens that were cut off: an accepted draft may be one more than was asked for.
        """
        cut = total = grown = 0
        each = self.sizes.sparse_growth
        for job, walk, context in zip(
            sparse, rows.walk.tolist(), rows.context.tolist(), strict=True
        ):
            job.walk = walk
            tokens = min(context - job.context, job.remaining)
            cut += context - job.context - tokens
            total += tokens
            grown += job.grow(tokens, each)
        for job in dense:
            total += steps
            grown += job.grow(steps, self.sizes.dense_growth)
        self.hbm.change(grown)
        self.book.generated_total += total
        return cut

    def finish_prefill(self, now_ps: int) -> int:
        """Move requests whose prefill is complete to decode; return how many got a token."""
        ready = [job for job in self.prefilling if job.context == job.target]
        if self.cost.costs.static_batches and len(ready) < len(self.prefilling):
            return 0
        self.prefilling = [job for job in self.prefilling if job.context < job.target]
        for job in ready:
            job.phase = Phase.DENSE
            if self._leaves_in_prefill(job):
                self._leave_hbm(job)
            job.generated += 1
            self.book.first_token(job, now_ps)
            self.running.append(job)
        self.book.generated_total += len(ready)
        return len(ready)

    def _leave_hbm(self, job: Job) -> None:
        """Keep only the working set of a request whose KV was copied during its prefill."""
        job.phase = Phase.SPARSE
        delta = self.sizes.sparse_bytes(job.context) - job.hbm_bytes
        job.hbm_bytes += delta
        self.hbm.change(delta)
        self._copied_bytes += job.context * self.sizes.host_token

    def take_copied_bytes(self) -> int:
        """Return the bytes copied to the host in prefill since the last call."""
        copied, self._copied_bytes = self._copied_bytes, 0
        return copied

    def let_go(self, now_ps: int) -> int:
        """Release finished requests; say how many there were."""
        done = [job for job in self.running if job.remaining == 0]
        if not done:
            return 0
        self.running = [job for job in self.running if job.remaining > 0]
        for job in done:
            self._release(job)
            job.phase = Phase.DONE
            self.book.finished(job, now_ps)
        return len(done)

    def over_budget(self) -> list[Job]:
        """Return the dense requests that have outgrown the token budget, marked as offloading."""
        if not self.cost.scheme.selects:
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
