"""One decode node by itself: what arrives and when is known beforehand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar

from oasis_sim.cluster.batch import Batch
from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.nodelog import NodeLog, NodeSteps
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.rows import Tables
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.cluster.steps import FetchCosts
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.serving import NEVER_PS
from oasis_sim.engine.state import OUT_END
from oasis_sim.engine.walks import build_walks

E = TypeVar("E", bound=tuple[Any, ...])


@dataclass(frozen=True, eq=False)
class NodeTask:
    """Say what a node decodes: requests with the times at which they join, oldest first.

    `reserved` are the times from which they hold memory, and how much of HBM and of the host,
    oldest first. `shares` are the times at which the number of transfers beside fetches changes,
    and that number. `late_tokens` are first tokens of requests that ended on their prefill node,
    by `end_ps`.
    """

    number: int
    arrivals: tuple[tuple[int, Visit], ...]
    reserved: tuple[tuple[int, int, int], ...]
    shares: tuple[tuple[int, int], ...]
    late_tokens: int
    end_ps: int


@dataclass(frozen=True, eq=False)
class NodeOutcome:
    """Hold the steps of a node and, per request, (number, end in ps, bytes fetched)."""

    number: int
    steps: NodeSteps
    ended: tuple[tuple[int, int, int], ...]


class NodeRunner:
    """Decode the tasks of any nodes of one cluster; made once per process.

    `room` is the memory of a node: HBM and host, bytes.
    """

    def __init__(self, scenario: Scenario, cluster: Cluster, room: tuple[int, int]) -> None:
        cost = CostModel(
            scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
        )
        self._walks = build_walks(
            scenario.traces, scenario.scheme, cost.share, scenario.drafter, scenario.seed
        )
        self._room = room
        self._sizes = NodeSizes(cost, cluster, self._walks)
        self._demand = Demand(self._sizes, None, self._walks.tables.group_size)

    def __call__(self, task: NodeTask) -> NodeOutcome | None:
        """Decode everything that arrives at a node; None as soon as memory is seen not to do."""
        tables = Tables(len(self._walks.tables.group_size))
        batch, log = Batch(self._sizes, self._walks, tables), NodeLog(self._sizes)
        ended: list[tuple[int, int, int]] = []
        coming, shares, sent = deque(task.arrivals), deque(task.shares), deque(task.reserved)
        now, together, hbm, host = 0, 0, 0, 0
        while batch.visits or coming:
            if not batch.visits:
                now = max(now, coming[0][0])
            self._join(batch, log, _until(coming, now))
            for _, number in _until(shares, now):
                together = number
            for _, hbm_bytes, host_bytes in _until(sent, now):
                hbm, host = hbm + hbm_bytes, host + host_bytes
            if hbm > self._room[0] or host > self._room[1]:
                return None
            batch.start(now)
            limit = min(coming[0][0] if coming else NEVER_PS, shares[0][0] if shares else NEVER_PS)
            steps, quality = batch.execute(batch.longest(), self._fetch(together), limit)
            now = int(steps[-1, OUT_END])
            batch.count(len(steps))
            log.add(steps, quality, batch.rows, hbm)
            for visit in batch.take_ended():
                hbm, host = hbm - visit.hbm_bytes, host - visit.host_bytes
                ended.append(self._end(visit, now, log))
        log.first_tokens += task.late_tokens
        return NodeOutcome(task.number, log.finish(max(now, task.end_ps)), tuple(ended))

    def _join(self, batch: Batch, log: NodeLog, joining: list[tuple[int, Visit]]) -> None:
        """Let requests join that are there, if any are."""
        visits = [visit for _, visit in joining]
        for visit in visits:
            log.join(visit.held_bytes)
            log.first_tokens += visit.job.generated
        if visits:
            batch.join(visits)

    def _fetch(self, together: int) -> FetchCosts:
        fixed, block = self._sizes.fetch_prices(together)
        return FetchCosts(fixed, block, 0, 1, 0)

    def _end(self, visit: Visit, now_ps: int, log: NodeLog) -> tuple[int, int, int]:
        """Let a request go; return its number, its end and what it fetched."""
        fetched, held = 0, visit.held_bytes
        if visit.host_bytes:
            fetched = self._demand.prompt_bytes(visit, visit.age) - held
            held += fetched + visit.age * self._sizes.kv_token
        log.hold(now_ps, -held)
        log.join(-held)
        return visit.job.index, now_ps, fetched


def _until(events: deque[E], now_ps: int) -> list[E]:
    """Take the events out that have happened by now; their times come first."""
    found = []
    while events and events[0][0] <= now_ps:
        found.append(events.popleft())
    return found
