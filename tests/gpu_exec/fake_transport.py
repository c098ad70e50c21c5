"""A transport that copies inside one process and tells the times of a network profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpu_exec.network.measure import Effort
from gpu_exec.network.points import points
from gpu_exec.network.stamps import POISON, Units, Words, pool_words, units_of
from gpu_exec.network.transport import TransportInfo
from oasis_sim.curve import Curve
from oasis_sim.network import NetworkProfile, Transfer, load_network
from oasis_sim.units import MIB, PS_PER_S

QUICK = Effort(rounds=2, transfers=3, seconds=0.0)
SMALL = points(MIB)
Fault = Callable[["FakeTransport", Units, Units], None]


class FakeTransport:
    """Move units between two pools; `disturbance` lengthens times, `fault` damages the result."""

    info = TransportInfo("fake", "host memory", "one process", "", 1 << 30)

    def __init__(
        self,
        network: NetworkProfile,
        *,
        disturbance: float = 0.0,
        fault: Fault | None = None,
        pool_bytes: int = 4 * MIB,
    ) -> None:
        self.pool_bytes = pool_bytes
        self.words = np.full(pool_bytes // 8, POISON)
        self.remote: Words = pool_words(pool_bytes, 0)
        self.transfers = 0
        self._network = network
        self._fault = fault
        self._disturbance = disturbance
        self._random = np.random.default_rng(5)

    def renew(self, generation: int) -> None:
        """Stamp the remote pool."""
        self.remote = pool_words(self.pool_bytes, generation)

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units, or all."""
        if into is None:
            self.words[:] = POISON
        else:
            units_of(self.words, unit_bytes)[into] = POISON

    def read(self, unit_bytes: int, into: Units, source: Units) -> float:
        """Copy the units; return the profile's time, disturbed."""
        self.transfers += 1
        self.unit_bytes = unit_bytes
        units_of(self.words, unit_bytes)[into] = units_of(self.remote, unit_bytes)[source]
        if self._fault is not None:
            self._fault(self, into, source)
        seconds = self._network.transfer_ps(Transfer.of(len(into), unit_bytes)) / PS_PER_S
        return seconds * (1 + self._disturbance * float(self._random.exponential()))

    def local(self) -> Words:
        """Return the own pool."""
        return self.words

    def close(self) -> None:
        """Hold nothing."""


def a_network(**changes: object) -> NetworkProfile:
    """Return a network with a posting cost and an efficiency that falls for small descriptors."""
    network = replace(
        load_network("roce-100"),
        latency_ps=9_000_000,
        completion_ps=0,
        posting_ps=1_500_000,
        efficiency=Curve((4096.0, 65536.0, 1048576.0), (0.5, 0.9, 1.0)),
    )
    return replace(network, **changes)
