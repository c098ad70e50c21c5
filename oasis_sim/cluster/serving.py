"""Serving on prefill and decode nodes: from arrival over prefill and the network to the last token.

A request goes to the prefill node with the least work in its queue and to the decode node that
was given the fewest tokens so far. Its KV is sent when the decode node has room for it to its
end, so that no request is ever preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from oasis_sim.cluster.decode import DecodeNode, Hooks
from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.prefill import PrefillNode
from oasis_sim.cluster.record import Record
from oasis_sim.cluster.router import Router
from oasis_sim.cluster.rows import Tables
from oasis_sim.cluster.steps import FetchCosts
from oasis_sim.cluster.transport import Transport
from oasis_sim.cluster.visit import NOWHERE, Stage, Visit
from oasis_sim.cluster.watch import Watch
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan
from oasis_sim.engine.walks import Walks
from oasis_sim.errors import RunFailed

Progress = Callable[[int, int], None]


class ClusterLoop:
    """Serve a workload on the nodes of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        demand: Demand,
        plan: MemoryPlan,
        walks: Walks,
        book: RequestBook,
        progress: Progress | None,
    ) -> None:
        """Prepare idle nodes; nothing happens before `start` and `run`."""
        sizes = demand.sizes
        self.env = simpy.Environment(initial_time=0)
        self.cluster, self.sizes, self.book, self.demand = cluster, sizes, book, demand
        self.record = Record(len(book), cluster.prefill)
        self.prefill = [
            PrefillNode(self.env, number, cluster.remote_bytes, self._begun, self._computed)
            for number in range(cluster.prefill)
        ]
        tables = Tables(len(walks.tables.group_size))
        hooks = Hooks(self._fetch, self._finish, self._tell)
        self.decode = [
            DecodeNode(self.env, number, sizes, plan, walks, tables, hooks)
            for number in range(cluster.decode)
        ]
        self.transport = Transport(self.env, cluster, self.record, self._shared)
        self.router = Router(cluster.decode)
        self.visits: dict[int, Visit] = {}
        self.homeless: list[Visit] = []
        self._plan, self._walks, self._progress = plan, walks, progress
        self.watch = Watch(self.env, self.prefill, self.decode, self.homeless, book)
        self._slot: simpy.Event | None = None
        self._over = self.env.event()
        self._arriving = True

    def start(self) -> None:
        """Let nodes decode and requests arrive, once the clock runs."""
        self._start_decoding()
        self.env.process(self._arrivals())

    def run(self, pause_ps: float = simpy.core.Infinity) -> bool:
        """Simulate until every request is done, or up to a time; tell whether all are done."""
        env, over = self.env, self._over
        while not over.processed and env.peek() < pause_ps:
            env.step()
        if over.processed or env.peek() != simpy.core.Infinity:
            return bool(over.processed)
        if not self.homeless:
            raise RuntimeError("nothing happens any more, and requests are not done")
        raise RunFailed(
            f"{len(self.homeless)} requests wait for a prefill node, and none is left: let one "
            "come back (--fault prefill:node=0,at=...,for=...)"
        )

    def _start_decoding(self) -> None:
        for node in self.decode:
            self.env.process(node.run())

    @property
    def now_ps(self) -> int:
        """Return the simulated time."""
        return int(self.env.now)

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        for index in range(len(self.book)):
            delay = self.book.due_ps(index) - self.now_ps
            if delay > 0:
                self.watch.look()
                yield self.env.timeout(delay)
            while self.book.at_limit():
                self.watch.look()
                self._slot = self.env.event()
                yield self._slot
            visit = Visit(self.book.arrive(index, self.now_ps, self._walks))
            self.visits[index] = visit
            if self._admits(visit):
                self.send_to_prefill(visit)
        self._arriving = False
        self.watch.look()
        self._look_for_end()

    def _admits(self, visit: Visit) -> bool:
        """Refuse a request that no node could ever hold."""
        job, sizes, plan = visit.job, self.sizes, self._plan
        hbm = max(sizes.hbm_bytes(job.prompt, job.output), sizes.footprint.dense_bytes(job.prompt))
        self.demand.settle(visit)
        if hbm <= plan.kv_pool_bytes and visit.host_bytes <= plan.host_capacity_bytes:
            return True
        self.book.reject(job, hbm, plan.kv_pool_bytes, visit.host_bytes, plan.host_capacity_bytes)
        del self.visits[job.index]
        return False

    def send_to_prefill(self, visit: Visit) -> None:
        """Give a request to a prefill node and name its decode node."""
        alive = [node for node in self.prefill if node.alive]
        if not alive:
            self.homeless.append(visit)
            return
        node = min(alive, key=lambda n: (n.load_ps, n.number))
        visit.decode = self.router.decode(visit.job.prompt + visit.job.output)
        node.enter(visit)
        self.watch.look()

    def _begun(self, visit: Visit) -> None:
        """Note that a prefill begins: the node keeps the KV from now on."""
        self.book.admitted(visit.job, self.now_ps)
        self.prefill[visit.prefill].staging.change(visit.staged_bytes)
        self.record.staging[visit.prefill].add(self.now_ps, visit.staged_bytes)
        requests, index = self.record.requests, visit.job.index
        requests.prefill_node[index], requests.decode_node[index] = visit.prefill, visit.decode
        requests.prefill_start_ps[index] = self.now_ps
        self.watch.look()

    def _computed(self, visit: Visit) -> None:
        """Take the first token (two with an extra step), and hand the request over."""
        self.record.requests.prefill_end_ps[visit.job.index] = self.now_ps
        self.record.prefill_busy_ps += visit.prefill_ps
        job = visit.job
        job.context = visit.context
        tokens = min(job.remaining, 2 if visit.need is not None else 1)
        job.generated += tokens
        # A token's KV exists once the next one has been computed.
        job.context += tokens - 1
        node = self.decode[visit.decode]
        node.log.first_tokens += tokens
        if job.remaining == 0:
            self.book.first_token(job, self.now_ps)
            self.free_staging(visit)
            self._end(visit)
            return
        visit.stage = Stage.STAGED
        node.waiting.append(visit)
        self.hand_over(node)

    def hand_over(self, node: DecodeNode) -> None:
        """Send what waits for a decode node, in order, as far as there is room and its turn."""
        at_once = self.cluster.at_once
        node.lacking = None
        while node.waiting and (at_once is None or node.sending < at_once):
            visit = node.waiting[0]
            node.lacking = node.shortage(visit)
            if node.lacking:
                break
            node.waiting.popleft()
            node.hbm.change(visit.hbm_bytes)
            node.host.change(visit.host_bytes)
            node.sending += 1
            visit.stage, visit.in_turn = Stage.SENDING, True
            self.env.process(self._send(visit, node, visit.life))
        self.watch.look()

    def end_turn(self, visit: Visit) -> None:
        """Note that a hand-over is no longer under way."""
        if visit.in_turn:
            visit.in_turn = False
            self.decode[visit.decode].sending -= 1

    def _send(self, visit: Visit, node: DecodeNode, life: int) -> Generator[simpy.Event, Any, None]:
        """Carry a request's KV to its decode node; it joins the batch when all is there."""
        parts = self.demand.parts(visit)
        self.record.resident.add(self.now_ps, 1)
        if visit.host_bytes:
            visit.held_bytes = parts.kv.total_bytes
            node.log.hold(self.now_ps, visit.held_bytes)
        yield from self.transport.carry(visit, parts, life)
        if visit.life != life:
            return
        self.end_turn(visit)
        self.hand_over(node)
        self.book.first_token(visit.job, self.now_ps)
        if visit.need is None:
            self.free_staging(visit)
            visit.prefill = NOWHERE
        load = self.sizes.load_ps(visit.job.prompt)
        if load:
            yield self.env.timeout(load)
        if visit.life == life:
            visit.age = 0
            self._arrive(visit, node)

    def _arrive(self, visit: Visit, node: DecodeNode) -> None:
        """Let a request join its decode node's batch at the next step."""
        node.arrived.append(visit)
        node.poke()

    def _shared(self, decode: int) -> None:
        """Let a decode node price its fetches anew."""
        if self.demand.fetches:
            self.decode[decode].poke()

    def _fetch(self, node: DecodeNode) -> FetchCosts:
        """Return the price of fetches of a node's coming steps."""
        faults = self.cluster.faults
        fixed, block = self.sizes.fetch_prices(self.transport.inbound(node.number))
        share = self.transport.share(self.cluster.prefill + node.number)
        for visit in node.batch.visits if faults.links else ():
            if visit.need is not None:
                share = min(share, self.transport.share(visit.prefill))
        late = faults.late_fetches
        return FetchCosts(
            fixed, block / share, late.numerator, late.denominator, faults.fetch_delay_ps
        )

    def _tell(self, tokens: int) -> None:
        """Count output tokens of steps that are over."""
        self.book.generated_total += tokens
        if self._progress is not None:
            self._progress(self.book.generated_total, self.book.expected_total)

    def _finish(self, visit: Visit) -> None:
        """Let a request go that has all its tokens."""
        self.leave_decode(visit)
        if visit.need is not None:
            self.free_staging(visit)
        self._end(visit)

    def leave_decode(self, visit: Visit) -> None:
        """Give back what a request holds of its decode node."""
        node, index = self.decode[visit.decode], visit.job.index
        node.hbm.change(-visit.hbm_bytes)
        node.host.change(-visit.host_bytes)
        held = visit.held_bytes
        if visit.host_bytes and visit.age:
            fetched = self.demand.prompt_bytes(visit, visit.age) - visit.held_bytes
            self.record.requests.fetched_bytes[index] += fetched
            held += fetched + visit.age * self.sizes.kv_token
        node.log.hold(self.now_ps, -held)
        if visit.joined:
            node.log.join(-held)
        self.record.resident.add(self.now_ps, -1)
        visit.held_bytes = 0
        self.hand_over(node)

    def free_staging(self, visit: Visit) -> None:
        """Give back what a request holds of its prefill node."""
        node = self.prefill[visit.prefill]
        node.staging.change(-visit.staged_bytes)
        self.record.staging[visit.prefill].add(self.now_ps, -visit.staged_bytes)
        node.look()

    def _end(self, visit: Visit) -> None:
        visit.stage = Stage.ENDED
        self.book.finished(visit.job, self.now_ps)
        del self.visits[visit.job.index]
        self._free_slot()
        self._look_for_end()

    def _free_slot(self) -> None:
        """Give the client its place back, after the time that it thinks."""
        self.env.timeout(self.book.think_ps).callbacks.append(self._give_place)

    def _give_place(self, _: simpy.Event) -> None:
        self.book.give_places(1)
        if self._slot is not None:
            self._slot.succeed()
            self._slot = None

    def _look_for_end(self) -> None:
        if not self._arriving and not self.visits and not self._over.triggered:
            self._over.succeed()
