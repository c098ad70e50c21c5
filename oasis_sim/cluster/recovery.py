"""What happens when something breaks: links slow down, prefill nodes die, requests start again."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from oasis_sim.cluster.faults import FOREVER_PS, LinkFault, PrefillFault, node_number
from oasis_sim.cluster.prefill import PrefillNode
from oasis_sim.cluster.serving import ClusterLoop
from oasis_sim.cluster.visit import NOWHERE, Stage, Visit


class Recovery:
    """Let the faults of a run happen.

    When a prefill node dies, all KV that it kept is gone. Decode nodes that fetch from it stand
    still until the time-out; then the requests concerned start again on another node, and what
    they have generated is computed once more with their prompts.
    """

    def __init__(self, loop: ClusterLoop) -> None:
        self._loop = loop

    def start(self) -> None:
        """Plan all faults."""
        faults = self._loop.cluster.faults
        for link in faults.links:
            self._loop.env.process(self._slow(link))
        for death in faults.prefill:
            self._loop.env.process(self._death(death))

    def _slow(self, fault: LinkFault) -> Generator[simpy.Event, Any, None]:
        """Renew the share of a node when a fault begins and ends; of several the least holds."""
        loop = self._loop
        yield loop.env.timeout(fault.at_ps)
        self._renew_share(fault.node)
        if fault.until_ps < FOREVER_PS:
            yield loop.env.timeout(fault.until_ps - fault.at_ps)
            self._renew_share(fault.node)

    def _renew_share(self, name: str) -> None:
        loop, cluster = self._loop, self._loop.cluster
        number = node_number(name, cluster.prefill, cluster.decode)
        assert number is not None
        now = [link for link in cluster.faults.links if link.holds(loop.now_ps)]
        share = min((link.share for link in now if link.node == name), default=1.0)
        loop.transport.set_share(number, share)
        for node in loop.decode:
            node.poke()

    def _death(self, fault: PrefillFault) -> Generator[simpy.Event, Any, None]:
        loop = self._loop
        node = loop.prefill[fault.node]
        yield loop.env.timeout(fault.at_ps)
        if node.alive:
            self._dies(node)
        if fault.until_ps < FOREVER_PS:
            yield loop.env.timeout(fault.until_ps - fault.at_ps)
            deaths = [each for each in loop.cluster.faults.prefill if each.node == fault.node]
            if any(each.holds(loop.now_ps) for each in deaths):
                return
            node.revive()
            waiting = list(loop.homeless)
            loop.homeless.clear()
            for visit in waiting:
                loop.send_to_prefill(visit)

    def _dies(self, node: PrefillNode) -> None:
        """Lose what the node had: its queue, and every request that still needs its KV."""
        loop, timeout = self._loop, self._loop.cluster.faults.timeout_ps
        node.die()
        mine = [visit for _, visit in sorted(loop.visits.items()) if visit.prefill == node.number]
        for decode in loop.decode:
            theirs = [
                visit
                for visit in mine
                if visit.decode == decode.number
                and visit.stage is Stage.DECODING
                and visit.need is not None
            ]
            if theirs:
                decode.stall(timeout)
                decode.drop(theirs, self._come_back)
        lost = [visit for visit in mine if visit.stage < Stage.DECODING]
        # Those that wait go first: room and turns that the others leave are not for them.
        for visit in sorted(lost, key=lambda visit: visit.stage is not Stage.STAGED):
            self._undo(visit)
        for decode in loop.decode:
            loop.hand_over(decode)
        if lost:
            loop.env.timeout(timeout).callbacks.append(lambda _: self._restart(lost))

    def _undo(self, visit: Visit) -> None:
        """Give back what a request holds that has not begun to decode."""
        loop = self._loop
        visit.life += 1
        if visit.stage is not Stage.QUEUED:
            loop.free_staging(visit)
        if visit.stage is Stage.STAGED:
            loop.decode[visit.decode].waiting.remove(visit)
        elif visit.stage is Stage.SENDING:
            loop.end_turn(visit)
            loop.transport.cancel(visit)
            arrived = loop.decode[visit.decode].arrived
            if visit in arrived:
                arrived.remove(visit)
            loop.leave_decode(visit)
        visit.stage, visit.prefill = Stage.QUEUED, NOWHERE

    def _come_back(self, visit: Visit) -> None:
        """Start a request again that a decode node had to drop."""
        visit.life += 1
        self._loop.free_staging(visit)
        self._loop.leave_decode(visit)
        visit.prefill = NOWHERE
        self._restart([visit])

    def _restart(self, visits: list[Visit]) -> None:
        """Queue requests again; prompt and output so far are prefilled, nothing is sent yet."""
        loop = self._loop
        requests = loop.record.requests
        for visit in visits:
            job = visit.job
            visit.age, visit.stage = 0, Stage.QUEUED
            job.target, job.context = job.prompt + job.generated, 0
            loop.book.preempted(job)
            requests.recomputed_tokens[job.index] += job.target
            requests.sent_ps[job.index] = requests.ready_ps[job.index] = -1
            loop.demand.settle(visit)
            loop.send_to_prefill(visit)
