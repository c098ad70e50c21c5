"""The book of requests: who arrived, was admitted, got tokens, finished or was refused."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine.batch import Job
from oasis_sim.engine.memory import shortage
from oasis_sim.engine.result import STATUS, RequestLog
from oasis_sim.engine.walks import Walks
from oasis_sim.workload import Workload

COMPLETED, REJECTED, RUNNING, WAITING = range(len(STATUS))


class RequestBook:
    """Keep one line per request of a workload; at most `concurrency` are in the system.

    At that limit a client sends its next request `think_ps` after one has ended.
    """

    def __init__(self, workload: Workload, concurrency: int | None, think_ps: int = 0) -> None:
        count = len(workload.arrival_ps)
        self._workload = workload
        self.concurrency = concurrency
        self.think_ps = think_ps if concurrency is not None else 0
        self._in_system = 0
        self._sent = 0
        self.generated_total = 0
        self.expected_total = int(workload.output_tokens.sum())
        self.first_refusal: str | None = None
        self.advice = ""
        self._arrival = workload.arrival_ps.astype(np.int64).copy()
        self._admitted = np.full(count, -1, dtype=np.int64)
        self._first = np.full(count, -1, dtype=np.int64)
        self._finish = np.full(count, -1, dtype=np.int64)
        self._generated = np.zeros(count, dtype=np.int64)
        self._preemptions = np.zeros(count, dtype=np.int32)
        self._status = np.full(count, WAITING, dtype=np.uint8)
        self._active: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._arrival)

    def due_ps(self, index: int) -> int:
        """Return when a request arrives by the workload."""
        return int(self._workload.arrival_ps[index])

    @property
    def next_due_ps(self) -> int | None:
        """Return when the next request that was not sent yet arrives; None when all were sent."""
        return self.due_ps(self._sent) if self._sent < len(self) else None

    def at_limit(self) -> bool:
        """Say whether the client has as many requests in the system as it may."""
        return self.concurrency is not None and self._in_system >= self.concurrency

    def arrive(self, index: int, now_ps: int, walks: Walks) -> Job:
        """Let a request in (a client at its limit sends it late) and return its job."""
        first, length, place = walks.start(index)
        prompt = int(self._workload.prompt_tokens[index])
        job = Job(
            index=index,
            prompt=prompt,
            output=int(self._workload.output_tokens[index]),
            target=prompt,
            walk_first=first,
            walk_length=length,
            walk=place,
        )
        self._arrival[index] = now_ps
        self._in_system += 1
        self._sent += 1
        self._active[index] = job
        return job

    def reject(self, job: Job, hbm: int, hbm_room: int, host: int, host_room: int) -> None:
        """Refuse a request that can never fit and keep the arithmetic of the first one."""
        self._status[job.index] = REJECTED
        self._leave(job)
        self.give_places(1)
        self.expected_total -= job.output
        if self.first_refusal is None:
            lacking, self.advice = shortage(hbm, hbm_room, host, host_room)
            self.first_refusal = (
                f"request {job.index} ({job.prompt:,} prompt + {job.output:,} output tokens) needs "
                f"{lacking}"
            )

    def admitted(self, job: Job, now_ps: int) -> None:
        """Note the first admission of a request."""
        if self._admitted[job.index] < 0:
            self._admitted[job.index] = now_ps
        self._status[job.index] = RUNNING

    def first_token(self, job: Job, now_ps: int) -> None:
        """Note the first output token (not the one after a recomputation)."""
        if self._first[job.index] < 0:
            self._first[job.index] = now_ps

    def preempted(self, job: Job) -> None:
        """Note that a request lost its memory and waits again."""
        self._preemptions[job.index] += 1
        self._status[job.index] = WAITING

    def finished(self, job: Job, now_ps: int) -> None:
        """Note the end of a request; the client's place is free when it has thought."""
        self._finish[job.index] = now_ps
        self._status[job.index] = COMPLETED
        self._leave(job)

    def _leave(self, job: Job) -> None:
        self._generated[job.index] = job.generated
        del self._active[job.index]

    def give_places(self, count: int) -> None:
        """Let the client send as many requests as have ended."""
        self._in_system -= count

    @property
    def rejected(self) -> int:
        """Return how many requests were refused."""
        return int((self._status == REJECTED).sum())

    def log(self) -> RequestLog:
        """Return the book as arrays."""
        generated = self._generated.copy()
        for index, job in self._active.items():
            generated[index] = job.generated
        return RequestLog(
            arrival_ps=self._arrival,
            prompt_tokens=self._workload.prompt_tokens.astype(np.int64),
            output_tokens=self._workload.output_tokens.astype(np.int64),
            generated_tokens=generated,
            admitted_ps=self._admitted,
            first_token_ps=self._first,
            finish_ps=self._finish,
            preemptions=self._preemptions,
            status=self._status,
        )
