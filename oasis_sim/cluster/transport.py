"""KV on its way between nodes: flows on the fabric, completions that are late or lost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.record import Record
from oasis_sim.cluster.sizes import Parts
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.fabric import Fabric, Flow
from oasis_sim.errors import RunFailed
from oasis_sim.network import Transfer

MOST_SENDS = 10_000
"""A transfer that is lost so often is given up, and the run with it."""


class Transport:
    """Carry hand-overs over the network of a cluster and count what it moved.

    `changed` is called with the number of a decode node when another number of transfers share its
    NICs, because the price of its fetches has changed.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cluster: Cluster,
        record: Record,
        changed: Callable[[int], None],
    ) -> None:
        self.fabric = Fabric(env, cluster.network, cluster.nodes)
        self._env, self._cluster, self._record = env, cluster, record
        self._changed = changed
        self._share = [1.0] * cluster.nodes
        self._inbound = [0] * cluster.decode
        self._completions = [0] * cluster.decode

    def inbound(self, node: int) -> int:
        """Return how many transfers are on their way to a decode node."""
        return self._inbound[node]

    def share(self, node: int) -> float:
        """Return the share of its rate at which a node of the network runs."""
        return self._share[node]

    def set_share(self, node: int, share: float) -> None:
        """Let the NICs of a node run at a share of their rate."""
        self._share[node] = share
        self.fabric.set_share(node, share)

    def carry(self, visit: Visit, parts: Parts, life: int) -> Generator[simpy.Event, Any, None]:
        """Send the parts of a hand-over side by side; end when the decode node knows of all."""
        index = visit.job.index
        requests, start = self._record.requests, int(self._env.now)
        requests.sent_ps[index] = start
        requests.union_bytes[index] = parts.kv.total_bytes
        requests.gpu_bytes[index] = parts.gpu.total_bytes if parts.gpu else 0
        todo = [parts.kv, *([parts.gpu] if parts.gpu else [])]
        yield self._env.all_of([self._env.process(self._one(visit, p, life)) for p in todo])
        if visit.life == life:
            visit.flows.clear()
            requests.ready_ps[index] = int(self._env.now)
            self._record.hand_over_bytes += parts.total_bytes

    def _one(
        self, visit: Visit, transfer: Transfer, life: int
    ) -> Generator[simpy.Event, Any, None]:
        """Send one part, again if its completion is lost; raise RunFailed if that never ends."""
        faults = self._cluster.faults
        for _ in range(MOST_SENDS):
            if visit.life != life:
                return
            start = int(self._env.now)
            flow = self._begin(visit, transfer)
            yield from self._carried(flow, visit, life)
            late = self._is_hit(visit.decode)
            if visit.life != life or faults.completion is None or not late:
                return
            if not faults.completion.lost:
                yield self._env.timeout(faults.completion.delay_ps)
                return
            yield self._env.timeout(max(0, start + faults.timeout_ps - int(self._env.now)))
            if visit.life != life:
                return  # `cancel` has counted what was sent
            visit.flows.remove(flow)
            self._record.requests.resent_bytes[visit.job.index] += transfer.total_bytes
            self._record.vain_bytes += transfer.total_bytes
        raise RunFailed(
            f"the hand-over of request {visit.job.index} from prefill{visit.prefill} to "
            f"decode{visit.decode} was sent {MOST_SENDS:,} times and its completion was lost every "
            "time; lower the share of --fault completion"
        )

    def _begin(self, visit: Visit, transfer: Transfer) -> Flow:
        node = self._cluster.prefill + visit.decode
        flow = self.fabric.send(visit.prefill, node, transfer)
        visit.flows.append(flow)
        self._count(visit.decode, 1)
        return flow

    def _carried(self, flow: Flow, visit: Visit, life: int) -> Generator[simpy.Event, Any, None]:
        """Wait for a flow; note its bytes, unless the request has been cancelled meanwhile."""
        decode = flow.destination - self._cluster.prefill
        yield flow.done
        self._count(decode, -1)
        if visit.life == life:
            moved = float(flow.transfer.total_bytes)
            self._record.network.add(flow.start_ps, int(self._env.now), moved)

    def cancel(self, visit: Visit) -> None:
        """Give up the flows of a request whose node has died; what they moved was in vain."""
        now = int(self._env.now)
        for flow in visit.flows:
            moved = flow.transfer.total_bytes
            if flow.parts:
                moved = self.fabric.cancel(flow)
                self._count(visit.decode, -1)
            if not flow.done.triggered:
                self._record.network.add(flow.start_ps, now, float(moved))
            self._record.vain_bytes += moved
        visit.flows.clear()

    def _count(self, decode: int, change: int) -> None:
        self._inbound[decode] += change
        self._changed(decode)

    def _is_hit(self, decode: int) -> bool:
        """Count a completion of a decode node; say whether it is one that fails."""
        completion = self._cluster.faults.completion
        self._completions[decode] += 1
        return completion is not None and completion.hits(self._completions[decode])
