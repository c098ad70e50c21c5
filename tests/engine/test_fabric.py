"""Transfers between nodes on the simulated clock: times, sharing, conservation, faults."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy

from oasis_sim.engine.fabric import Fabric, Flow
from oasis_sim.network import NetworkProfile, Transfer, load_network
from oasis_sim.units import KIB, PS_PER_S

NETWORK = load_network("roce-400")
TRANSFER = Transfer.of(400, 256 * KIB)
TWO_RAILS = replace(NETWORK, nics=4, rails=2, posting_ps=0)


def arrivals(
    network: NetworkProfile, sends: list[tuple[int, int, int]], nodes: int = 4
) -> list[int]:
    """Send TRANSFER as (start, source, destination) say; return when each is done."""
    env = simpy.Environment(initial_time=0)
    fabric = Fabric(env, network, nodes)
    done = [-1] * len(sends)

    def one(i: int, start_ps: int, source: int, destination: int) -> Generator[simpy.Event]:
        yield env.timeout(start_ps)
        yield fabric.send(source, destination, TRANSFER).done
        done[i] = int(env.now)

    for i, send in enumerate(sends):
        env.process(one(i, *send))
    env.run()
    assert 0 == fabric.flows
    total = TRANSFER.total_bytes * len(sends)
    assert total == sum(fabric.sent_bytes) == sum(fabric.received_bytes)
    return done


@pytest.mark.parametrize("network", [NETWORK, TWO_RAILS, load_network("nvlink-peer")])
def test_alone_it_takes_what_the_profile_says(network: NetworkProfile) -> None:
    """The fabric and the closed formula agree to a picosecond of rounding."""
    assert [pytest.approx(network.transfer_ps(TRANSFER), abs=2)] == arrivals(network, [(0, 0, 1)])


def test_two_equal_transfers_share_the_wire_but_not_the_posting() -> None:
    """Side by side each NIC carries both: twice the wire time, less where posting left gaps."""
    alone = arrivals(NETWORK, [(0, 0, 1)])[0]
    both = arrivals(NETWORK, [(0, 0, 1), (0, 0, 1)])
    wire = NETWORK.wire_bytes(TRANSFER) * PS_PER_S / NETWORK.rail_bytes_per_s
    fixed = NETWORK.latency_ps + NETWORK.completion_ps
    assert [pytest.approx(fixed + 2 * wire, abs=4)] * 2 == both
    assert alone < both[0] < 2 * alone
    free = replace(NETWORK, posting_ps=0)
    assert pytest.approx(2 * (arrivals(free, [(0, 0, 1)])[0] - fixed), abs=4) == (
        arrivals(free, [(0, 0, 1), (0, 0, 1)])[0] - fixed
    )


def test_both_directions_and_other_nodes_do_not_disturb() -> None:
    """Sending, receiving, and a pair elsewhere take as long as alone."""
    alone = arrivals(NETWORK, [(0, 0, 1)])[0]
    assert [alone] * 3 == arrivals(NETWORK, [(0, 0, 1), (0, 1, 0), (0, 2, 3)])


def test_more_nics_carry_more_transfers() -> None:
    """Four NICs, two rails each: two transfers do not disturb each other, four do."""
    alone = arrivals(TWO_RAILS, [(0, 0, 1)])[0]
    assert [alone] * 2 == arrivals(TWO_RAILS, [(0, 0, 1)] * 2)
    twice = alone + TWO_RAILS.flow_ps(TRANSFER)
    assert [pytest.approx(twice, abs=4)] * 4 == arrivals(TWO_RAILS, [(0, 0, 1)] * 4)


def test_a_link_at_a_tenth_for_a_while() -> None:
    """A slow spell of a whole transfer's wire time costs nine tenths of it; the bytes arrive."""
    network = replace(NETWORK, posting_ps=0)
    alone = arrivals(network, [(0, 0, 1)])[0]
    spell = network.flow_ps(TRANSFER) // 2
    env = simpy.Environment(initial_time=0)
    fabric = Fabric(env, network, 2)
    flow = fabric.send(0, 1, TRANSFER)

    def fault() -> Generator[simpy.Event]:
        fabric.set_share(0, 0.1)
        yield env.timeout(spell)
        fabric.set_share(0, 1.0)

    env.process(fault())
    env.run(flow.done)
    assert pytest.approx(alone + 0.9 * spell, abs=4) == env.now
    assert TRANSFER.total_bytes == fabric.received_bytes[1]


def test_a_cancelled_transfer_is_counted_and_makes_room() -> None:
    """Half-way through, half the bytes were in vain; the other transfer then goes on alone."""
    network = replace(NETWORK, posting_ps=0)
    env = simpy.Environment(initial_time=0)
    fabric = Fabric(env, network, 2)
    flows = [fabric.send(0, 1, TRANSFER) for _ in range(2)]
    half = network.flow_ps(TRANSFER)
    moved: list[int] = []

    def fault() -> Generator[simpy.Event]:
        yield env.timeout(half)
        moved.append(fabric.cancel(flows[0]))

    env.process(fault())
    env.run(flows[1].done)
    assert pytest.approx(TRANSFER.total_bytes / 2, abs=1) == moved[0] == fabric.cancelled_bytes
    fixed = network.latency_ps + network.completion_ps
    assert pytest.approx(half * 3 // 2 + fixed, abs=4) == env.now
    assert TRANSFER.total_bytes == sum(fabric.received_bytes)
    env.run()
    assert not flows[0].done.triggered


def test_many_flows_between_many_nodes_conserve_bytes() -> None:
    """64 + 16 nodes, random transfers: all arrive, in the same way each time."""

    def run() -> tuple[int, list[int]]:
        random = np.random.default_rng(3)
        env = simpy.Environment(initial_time=0)
        fabric = Fabric(env, NETWORK, 80)
        sent = [0] * 80

        def source() -> Generator[simpy.Event, Any, None]:
            for gap, giver, taker, count in zip(
                random.exponential(20e6, 3000).astype(int).tolist(),
                random.integers(0, 16, 3000).tolist(),
                random.integers(16, 80, 3000).tolist(),
                random.integers(1, 2000, 3000).tolist(),
                strict=True,
            ):
                yield env.timeout(gap)
                flow: Flow = fabric.send(giver, taker, Transfer.of(count, 8192))
                sent[taker] += flow.transfer.total_bytes

        env.process(source())
        env.run()
        assert sent == fabric.received_bytes
        return int(env.now), fabric.sent_bytes

    assert run() == run()
