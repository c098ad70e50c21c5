"""A link is a queue: its waiting times agree with queueing theory."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import simpy

from oasis_sim.engine.links import FifoLink
from oasis_sim.units import PS_PER_S

ARRIVALS = 200_000
SERVICE_PS = 1_000_000
BYTES = 1_000_000


def mean_time_in_system(gaps_ps: np.ndarray, sizes: np.ndarray) -> float:
    """Send transfers with the given gaps and sizes; return the mean picoseconds to arrival."""
    env = simpy.Environment()
    link = FifoLink(env, bytes_per_s=BYTES * PS_PER_S / SERVICE_PS)
    total = [0]

    def source() -> Generator[simpy.Event, Any, None]:
        for gap, size in zip(gaps_ps.tolist(), sizes.tolist(), strict=True):
            yield env.timeout(gap)
            sent = env.now
            link.send(size).callbacks.append(
                lambda _, sent=sent: total.__setitem__(0, total[0] + env.now - sent)
            )

    env.process(source())
    env.run()
    assert int(sizes.sum()) == link.moved_bytes
    return total[0] / len(sizes)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_fixed_sizes_behave_like_m_d_1(load: float) -> None:
    """Poisson arrivals of equal transfers: W = s (1 + rho / (2 (1 - rho)))."""
    random = np.random.default_rng(7)
    gaps = random.exponential(SERVICE_PS / load, ARRIVALS).round().astype(np.int64)
    measured = mean_time_in_system(gaps, np.full(ARRIVALS, BYTES))
    expected = SERVICE_PS * (1 + load / (2 * (1 - load)))
    assert measured == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_random_sizes_behave_like_m_m_1(load: float) -> None:
    """Poisson arrivals of exponential transfers: W = s / (1 - rho)."""
    random = np.random.default_rng(11)
    gaps = random.exponential(SERVICE_PS / load, ARRIVALS).round().astype(np.int64)
    sizes = random.exponential(BYTES, ARRIVALS).round().astype(np.int64)
    measured = mean_time_in_system(gaps, sizes)
    assert measured == pytest.approx(SERVICE_PS / (1 - load), rel=0.02)


def test_latency_delays_arrival_but_not_the_next_transfer() -> None:
    """Two transfers of 10 ps with a latency of 5 ps arrive at 15 and 25."""
    env = simpy.Environment()
    link = FifoLink(env, bytes_per_s=PS_PER_S, latency_ps=5)
    arrived: list[int] = []
    for _ in range(2):
        link.send(10).callbacks.append(lambda _: arrived.append(env.now))
    env.run()
    assert [15, 25] == arrived
    assert 20 == link.busy_ps
