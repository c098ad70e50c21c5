"""Fair sharing: against exact fractions, against what must hold, and at size."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.network.sharing import NEVER_PS, FairShare
from oasis_sim.units import PS_PER_S
from tests.network.plain_sharing import PlainFlow, plain_ends
from tests.strategies import fabric_loads

GB = 10**9


def ends_of(flows: list[PlainFlow], rates: list[int]) -> list[int]:
    """Run flows through the compiled sharing and return when each one ends."""
    shared = FairShare(rates)
    ends = [-1] * len(flows)
    numbers: dict[int, int] = {}
    waiting = sorted(range(len(flows)), key=lambda i: flows[i].start_ps)
    while waiting or shared.count:
        start = flows[waiting[0]].start_ps if waiting else NEVER_PS
        now = min(start, shared.next_ps)
        for number in shared.ended(now):
            ends[numbers.pop(number)] = now
        while waiting and flows[waiting[0]].start_ps == now:
            i = waiting.pop(0)
            flow = flows[i]
            limit = float(flow.limit * PS_PER_S)
            numbers[shared.start(now, flow.nics, float(flow.left), limit)] = i
    return ends


@given(fabric_loads())
def test_ends_are_those_of_exact_fractions(load: tuple[list[PlainFlow], list[int]]) -> None:
    """Compiled and plain sharing agree to the rounding of the clock at every event."""
    flows, rates = load
    exact = plain_ends(flows, [Fraction(rate, PS_PER_S) for rate in rates])
    for end, wanted in zip(ends_of(flows, rates), exact, strict=True):
        # Each end is rounded up to a picosecond; those before it shift it by as much each.
        assert -0.01 <= end - wanted <= 2 * len(flows)


def flow(nics: tuple[int, int], size: int = GB, start_ps: int = 0, limit: int = GB) -> PlainFlow:
    """Return a flow of `size` bytes, at most `limit` bytes per second."""
    return PlainFlow(nics, Fraction(size), Fraction(limit, PS_PER_S), start_ps)


def test_two_equal_flows_take_twice_as_long() -> None:
    """On one NIC at once, two flows get half the rate each; on two NICs they do not notice."""
    assert [PS_PER_S] == ends_of([flow((0, 1))], [GB] * 4)
    assert [2 * PS_PER_S] * 2 == ends_of([flow((0, 1))] * 2, [GB] * 4)
    assert [PS_PER_S] * 2 == ends_of([flow((0, 1)), flow((2, 3))], [GB] * 4)


def test_directions_are_separate() -> None:
    """A node that sends and receives does both at full rate."""
    assert [PS_PER_S] * 2 == ends_of([flow((0, 3)), flow((2, 1))], [GB] * 4)


def test_what_one_flow_cannot_use_goes_to_the_others() -> None:
    """Three flows leave NIC 0; one is held at a tenth by its receiver, the rest is shared."""
    shared = FairShare([GB, GB // 10, GB, GB])
    rates = [shared.start(0, (0, to), GB, GB) for to in (1, 2, 3)]
    assert [pytest.approx(share * GB) for share in (0.1, 0.45, 0.45)] == [
        shared.rate(number) for number in rates
    ]


def test_a_flow_keeps_to_its_own_limit() -> None:
    """A flow that posts slowly leaves room for the other one."""
    shared = FairShare([GB, GB])
    slow, fast = shared.start(0, (0, 1), GB, GB / 10), shared.start(0, (0, 1), GB, GB)
    assert pytest.approx(0.1 * GB) == shared.rate(slow)
    assert pytest.approx(0.9 * GB) == shared.rate(fast)


def test_a_stopped_nic_holds_its_flows() -> None:
    """At share 0 nothing ends; at a tenth the rest takes ten times as long."""
    shared = FairShare([GB, GB])
    shared.start(0, (0, 1), GB, GB)
    half = PS_PER_S // 2
    shared.set_share(half, 0, 0.0)
    assert NEVER_PS == shared.next_ps
    shared.set_share(2 * half, 0, 0.1)
    assert 2 * half + 5 * PS_PER_S == shared.next_ps


def test_a_stopped_flow_says_what_is_left() -> None:
    """Stopping at a quarter of the way leaves three quarters, and its share to the other flow."""
    shared = FairShare([GB, GB])
    first, second = (shared.start(0, (0, 1), GB, GB) for _ in range(2))
    assert pytest.approx(0.75 * GB) == shared.stop(PS_PER_S // 2, first)
    assert pytest.approx(GB) == shared.rate(second)
    assert PS_PER_S // 2 + PS_PER_S * 3 // 4 == shared.next_ps
    assert 1 == shared.load(0)


def test_time_does_not_go_back() -> None:
    """An earlier instant is refused."""
    shared = FairShare([GB, GB])
    shared.start(5, (0, 1), GB, GB)
    with pytest.raises(ValueError, match="went back"):
        shared.start(4, (0, 1), GB, GB)


@given(st.integers(0, 2**32 - 1))
def test_no_nic_is_overfull_and_no_rate_could_rise(seed: int) -> None:
    """Max-min: each flow is at its limit, or one of its NICs is full and gives nobody more."""
    random = np.random.default_rng(seed)
    nics, count = 12, 200
    rates = random.integers(1, 100, nics) * GB
    shared = FairShare(rates.tolist())
    routes = [(2 * int(a), 2 * int(b) + 1) for a, b in random.integers(0, nics // 2, (count, 2))]
    limits = (random.random(count) * 20 * GB + 1).tolist()
    numbers = [
        shared.start(0, route, GB, limit) for route, limit in zip(routes, limits, strict=True)
    ]
    got = np.array([shared.rate(number) for number in numbers])
    on = np.zeros((nics, count), dtype=bool)
    for i, route in enumerate(routes):
        on[list(route), i] = True
    used = on @ got
    assert (used <= rates * (1 + 1e-9)).all()
    full = used >= rates * (1 - 1e-9)
    most = np.where(on, got, 0.0).max(axis=1)
    for i, route in enumerate(routes):
        held = any(full[nic] and got[i] >= most[nic] * (1 - 1e-9) for nic in route)
        assert held or got[i] == pytest.approx(limits[i])


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_shared_link_behaves_like_processor_sharing(load: float) -> None:
    """Poisson arrivals of equal flows on one link: mean time s / (1 - load) (M/D/1-PS)."""
    random = np.random.default_rng(7)
    service, count = 1_000_000, 10_000
    gaps = random.exponential(service / load, count).round().astype(np.int64)
    starts = np.cumsum(gaps).tolist()
    rate = PS_PER_S  # a byte per picosecond
    flows = [flow((0, 1), service, start, rate) for start in starts]
    times = np.array(ends_of(flows, [rate, rate])) - starts
    assert service / (1 - load) == pytest.approx(times.mean(), rel=0.03)
