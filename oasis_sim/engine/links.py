"""A link as a first-in first-out server on the simulated clock."""

from __future__ import annotations

import simpy

from oasis_sim.units import PS_PER_S


class FifoLink:
    """Carry transfers one after the other at a fixed rate.

    A transfer of n bytes occupies the link for n / bytes_per_s and arrives `latency_ps` after it
    has left. `busy_ps` and `moved_bytes` count what was carried.
    """

    def __init__(self, env: simpy.Environment, bytes_per_s: float, latency_ps: int = 0) -> None:
        self._env = env
        self._ps_per_byte = PS_PER_S / bytes_per_s
        self._latency_ps = latency_ps
        self._free_ps = 0
        self.busy_ps = 0
        self.moved_bytes = 0

    def send(self, size_bytes: int) -> simpy.Event:
        """Queue a transfer and return the event of its arrival."""
        occupied = round(size_bytes * self._ps_per_byte)
        self._free_ps = max(self._free_ps, int(self._env.now)) + occupied
        self.busy_ps += occupied
        self.moved_bytes += size_bytes
        return self._env.timeout(self._free_ps - self._env.now + self._latency_ps)
