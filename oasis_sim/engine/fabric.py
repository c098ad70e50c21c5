"""Nodes on a network as a server on the simulated clock: transfers share NICs max-min fairly."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import simpy

from oasis_sim.network import NetworkProfile, Transfer
from oasis_sim.network.sharing import NEVER_PS, FairShare
from oasis_sim.units import PS_PER_S

SEND, RECEIVE = 0, 1
"""Directions of a NIC, as its node sees them."""


@dataclass(eq=False)
class Flow:
    """One transfer under way.

    `done` happens when the receiver knows that all bytes have arrived; it never happens for a flow
    that was cancelled. `parts` are its shares of the rails, None when they have ended.
    """

    source: int
    destination: int
    transfer: Transfer
    start_ps: int
    done: simpy.Event
    parts: set[int] = field(default_factory=set)


class Fabric:
    """Connect `nodes` like nodes of one network profile.

    A transfer is spread evenly over `rails` NICs of either node: those with the fewest flows at
    its start, the first of equals. `sent_bytes` and `received_bytes` count, per node, what
    finished transfers have moved; `cancelled_bytes` what cancelled ones had moved in vain.
    """

    def __init__(self, env: simpy.Environment, network: NetworkProfile, nodes: int) -> None:
        self.network = network
        self.nodes = nodes
        self.sent_bytes = [0] * nodes
        self.received_bytes = [0] * nodes
        self.cancelled_bytes = 0
        self._env = env
        rates = (network.send_bytes_per_s, network.receive_bytes_per_s)
        self._nics = FairShare([rates[side] for side in (SEND, RECEIVE)] * nodes * network.nics)
        self._flows: dict[int, Flow] = {}
        self._alarm_ps = NEVER_PS
        self._is_checking = False

    @property
    def flows(self) -> int:
        """Return the number of transfers that occupy a NIC."""
        return len({id(flow) for flow in self._flows.values()})

    def send(self, source: int, destination: int, transfer: Transfer) -> Flow:
        """Start a transfer between two nodes."""
        now = int(self._env.now)
        flow = Flow(source, destination, transfer, now, self._env.event())
        rails = self.network.rails
        work = self.network.wire_bytes(transfer) / rails
        limit = work * PS_PER_S / max(1, self.network.flow_ps(transfer))
        outward, inward = self._idlest(source, SEND), self._idlest(destination, RECEIVE)
        for nics in zip(outward, inward, strict=True):
            part = self._nics.start(now, nics, work, limit)
            flow.parts.add(part)
            self._flows[part] = flow
        self._check()
        return flow

    def cancel(self, flow: Flow) -> int:
        """Give up a transfer that has not ended; return the bytes that it had moved."""
        now = int(self._env.now)
        work = self.network.wire_bytes(flow.transfer)
        left = 0.0
        for part in sorted(flow.parts):
            left += self._nics.stop(now, part)
            del self._flows[part]
        flow.parts.clear()
        moved = int(flow.transfer.total_bytes * (1 - min(1.0, left / work)))
        self.cancelled_bytes += moved
        self._check()
        return moved

    def set_share(self, node: int, share: float) -> None:
        """Let all NICs of a node run at a share of their rate, both directions; 0 stops them."""
        for nic in range(self.network.nics):
            for side in (SEND, RECEIVE):
                self._nics.set_share(int(self._env.now), self._index(node, nic, side), share)
        self._check()

    def _index(self, node: int, nic: int, side: int) -> int:
        return 2 * (node * self.network.nics + nic) + side

    def _idlest(self, node: int, side: int) -> list[int]:
        nics = [self._index(node, nic, side) for nic in range(self.network.nics)]
        return sorted(nics, key=lambda nic: (self._nics.load(nic), nic))[: self.network.rails]

    def _check(self) -> None:
        """Look for the next end once all that happens at this instant has happened."""
        if not self._is_checking:
            self._is_checking = True
            self._env.timeout(0).callbacks.append(self._set_alarm)

    def _set_alarm(self, _: simpy.Event) -> None:
        self._is_checking = False
        end_ps = self._nics.next_ps
        if end_ps != self._alarm_ps:
            self._alarm_ps = end_ps
            if end_ps != NEVER_PS:
                alarm = self._env.timeout(end_ps - int(self._env.now))
                alarm.callbacks.append(self._finish)

    def _finish(self, _: simpy.Event) -> None:
        """Take out what has ended; an alarm that came too early finds nothing."""
        now = int(self._env.now)
        if now == self._alarm_ps:
            self._alarm_ps = NEVER_PS
        for part in self._nics.ended(now):
            flow = self._flows.pop(part)
            flow.parts.remove(part)
            if not flow.parts:
                self.sent_bytes[flow.source] += flow.transfer.total_bytes
                self.received_bytes[flow.destination] += flow.transfer.total_bytes
                told = self._env.timeout(self.network.latency_ps + self.network.completion_ps)
                told.callbacks.append(partial(_tell, flow.done))
        self._check()


def _tell(done: simpy.Event, _: simpy.Event) -> None:
    done.succeed()
