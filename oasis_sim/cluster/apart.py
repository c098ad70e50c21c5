"""Prefill first, then every decode node by itself: the same run, where nothing flows back.

Where requests arrive at times of their own and memory is enough, decode nodes do not act on
prefill nodes. So the way of all requests up to their decode nodes is simulated first; then each
node decodes what arrives, on as many processes as there are. If any node turns out to hold more
than it can, requests would have had to wait, and the whole is simulated again with all nodes
together (`serving`). The number of processes changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from oasis_sim.cluster.alone import NodeOutcome, NodeRunner, NodeTask
from oasis_sim.cluster.decode import DecodeNode
from oasis_sim.cluster.nodelog import NodeSteps
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.serving import ClusterLoop, Progress
from oasis_sim.cluster.visit import Stage, Visit
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.scenario import Scenario

BOUNDLESS = 1 << 62

Jobs = Callable[
    [Callable[[], Callable[[Any], Any]], Sequence[Any]], Generator[tuple[int, Any], None, None]
]
"""Run jobs with a handler that is made once per process; yields (index, result) of each."""


def one_by_one(
    make_handler: Callable[[], Callable[[Any], Any]], jobs: Sequence[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Run jobs in this process, in order."""
    handler = make_handler()
    for index, job in enumerate(jobs):
        yield index, handler(job)


class Front(ClusterLoop):
    """Carry requests to their decode nodes, which take all and decode nothing."""

    def start(self) -> None:
        """Give all nodes memory without bounds; the run ends when all requests are at theirs."""
        self.arrivals: list[list[tuple[int, Visit]]] = [[] for _ in self.decode]
        self.shares: list[list[tuple[int, int]]] = [[] for _ in self.decode]
        self.there: list[Visit] = []
        for node in self.prefill:
            node.staging.capacity_bytes = BOUNDLESS
        for decode in self.decode:
            decode.hbm.capacity_bytes = decode.host.capacity_bytes = BOUNDLESS
        super().start()

    def _start_decoding(self) -> None:
        """Leave decode for later."""

    def _arrive(self, visit: Visit, node: DecodeNode) -> None:
        self.arrivals[node.number].append((self.now_ps, visit))
        self.there.append(visit)
        del self.visits[visit.job.index]
        self._look_for_end()

    def _shared(self, decode: int) -> None:
        if self.demand.fetches:
            self.shares[decode].append((self.now_ps, self.transport.inbound(decode)))

    def tasks(self) -> list[NodeTask]:
        """Return what is left for each decode node."""
        sent = self.record.requests.sent_ps
        found = []
        for node, arrivals in zip(self.decode, self.arrivals, strict=True):
            reserved = sorted(
                (int(sent[v.job.index]), v.hbm_bytes, v.host_bytes) for _, v in arrivals
            )
            late = node.log.first_tokens - sum(visit.job.generated for _, visit in arrivals)
            found.append(
                NodeTask(
                    node.number,
                    tuple(arrivals),
                    tuple(reserved),
                    tuple(self.shares[node.number]),
                    late,
                    self.now_ps,
                )
            )
        return found

    def close(self, outcomes: list[NodeOutcome]) -> None:
        """Note the ends of all requests, and what ends with them."""
        visits = {visit.job.index: visit for visit in self.there}
        ended = sorted((end, index, fetched) for o in outcomes for index, end, fetched in o.ended)
        for end, index, fetched in ended:
            visit = visits[index]
            visit.stage = Stage.ENDED
            visit.job.generated = visit.job.output
            self.record.requests.fetched_bytes[index] = fetched
            self.record.resident.add(end, -1)
            if visit.need is not None:
                self.record.staging[visit.prefill].add(end, -visit.staged_bytes)
            self.book.finished(visit.job, end)

    def memory_suffices(self, hbm: int, host: int) -> bool:
        """Say whether no node ever held more than it can."""
        log = self.book.log()
        sent = self.record.requests.sent_ps
        for arrivals in self.arrivals:
            index = np.array([visit.job.index for _, visit in arrivals], dtype=np.int64)
            for room, sizes in (
                (hbm, [visit.hbm_bytes for _, visit in arrivals]),
                (host, [visit.host_bytes for _, visit in arrivals]),
            ):
                if _most_at_once(sent[index], log.finish_ps[index], sizes) > room:
                    return False
        kept = [changes.arrays() for changes in self.record.staging]
        room = self.cluster.remote_bytes
        return all(_peak(when, delta) <= room for when, delta in kept)


class Prompts(Front):
    """Compute prompts; what they would hand over goes nowhere."""

    def _computed(self, visit: Visit) -> None:
        self.record.requests.prefill_end_ps[visit.job.index] = self.now_ps
        del self.visits[visit.job.index]
        self._look_for_end()


def decode_apart(
    front: Front,
    scenario: Scenario,
    cluster: Cluster,
    plan: MemoryPlan,
    jobs: Jobs,
    progress: Progress | None,
) -> tuple[list[NodeSteps], int] | None:
    """Decode all nodes; return their steps in order and the end of the last request.

    Return None when a node would have held more than it can.
    """
    tasks = front.tasks()
    outcomes: list[NodeOutcome] = []
    room = (plan.kv_pool_bytes, plan.host_capacity_bytes)
    with closing(jobs(partial(NodeRunner, scenario, cluster, room), tasks)) as done:
        for index, outcome in done:
            if outcome is None:
                return None
            outcomes.append(outcome)
            arrivals = tasks[index].arrivals
            front.book.generated_total += sum(visit.job.output for _, visit in arrivals)
            if progress is not None:
                progress(front.book.generated_total, front.book.expected_total)
    outcomes.sort(key=lambda outcome: outcome.number)
    front.close(outcomes)
    if not front.memory_suffices(*room):
        return None
    end = max([front.now_ps, *(end for o in outcomes for _, end, _ in o.ended)])
    return [outcome.steps for outcome in outcomes], end


def _most_at_once(start: np.ndarray, end: np.ndarray, sizes: list[int]) -> int:
    size = np.array(sizes, dtype=np.int64)
    return _peak(np.concatenate([start, end]), np.concatenate([size, -size]))


def _peak(when: np.ndarray, delta: np.ndarray) -> int:
    """Return the most held at once; of changes at one instant the upward ones come first."""
    order = np.lexsort((-delta, when))
    return int(np.cumsum(delta[order]).max(initial=0))
