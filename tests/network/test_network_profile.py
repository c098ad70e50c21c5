"""Network profiles: shipped ones cite every number, times follow the formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.fileio import shipped_inputs
from oasis_sim.network import Transfer, load_network
from oasis_sim.units import KIB, PS_PER_S, PS_PER_US

NAMES = sorted(shipped_inputs("network"))


def test_presets() -> None:
    """What the documents name is there."""
    assert ["nvlink-peer", "nvme", "roce-100", "roce-200", "roce-2x200", "roce-400"] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_shipped_networks_load_and_cite(name: str) -> None:
    """Each shipped network reads and gives a source for every number."""
    network = load_network(name)
    assert name == network.name
    assert all(source.strip() for source in network.sources.values())
    assert {
        "nics",
        "rails",
        "nic.send",
        "nic.receive",
        "latency",
        "posting",
        "completion",
        "efficiency",
        "coalesce",
        "remote_capacity",
    } == set(network.sources)


def test_published_posting_share() -> None:
    """112,000 descriptors for 4.9 GB at 400 Gbit/s spend 57 % of the time in posting."""
    network, transfer = load_network("roce-400"), Transfer(112_000, 4_900_000_000)
    share = network.posting_total_ps(transfer) / network.transfer_ps(transfer)
    assert pytest.approx(0.57, abs=0.005) == share


def test_published_rate_of_large_descriptors() -> None:
    """42.6 GB/s at 400 Gbit/s, posting apart."""
    network, transfer = load_network("roce-400"), Transfer.of(1, 10**9)
    assert pytest.approx(42.6e9, rel=0.002) == network.bytes_per_s(transfer)


@pytest.mark.parametrize(
    ("size", "gb_per_s"), [(KIB, 0.7), (4 * KIB, 4.7), (16 * KIB, 11.7), (64 * KIB, 12.0)]
)
def test_published_rates_over_two_rails(size: int, gb_per_s: float) -> None:
    """NIXL over UCX on two rails of 200 Gbit/s, by descriptor size."""
    rate = load_network("roce-2x200").bytes_per_s(Transfer.of(100_000, size))
    assert pytest.approx(gb_per_s * 1e9, rel=0.01) == rate


def test_time_of_one_transfer_by_hand() -> None:
    """roce-400, 100 descriptors of 256,000 bytes: 5 + 100 x 1.36 + 25.6 MB / 42.6 GB/s + 1 us."""
    by_hand_us = 5 + 136 + 25.6e6 / (0.852 * 50e9) * 1e6 + 1
    network = load_network("roce-400")
    assert pytest.approx(by_hand_us * PS_PER_US) == network.transfer_ps(Transfer.of(100, 256_000))


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**7),
    st.sampled_from(NAMES),
)
def test_packing_keeps_bytes_and_saves_time(count: int, size: int, limit: int, name: str) -> None:
    """Packed descriptors hold the same bytes, none is above the limit, and take no longer."""
    network, plain = load_network(name), Transfer.of(count, size)
    packed = plain.coalesced(limit)
    assert plain.total_bytes == packed.total_bytes
    assert packed.descriptors <= plain.descriptors
    assert packed.unit_bytes <= max(limit, size)
    assert network.transfer_ps(packed) <= network.transfer_ps(plain)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(NAMES))
def test_no_transfer_beats_the_nominal_rate(count: int, size: int, name: str) -> None:
    """Latency, posting and efficiency only add to bytes over bandwidth."""
    network, transfer = load_network(name), Transfer.of(count, size)
    least = transfer.total_bytes * PS_PER_S / (network.rails * network.rail_bytes_per_s)
    assert network.transfer_ps(transfer) >= least - 1


@pytest.mark.parametrize(("descriptors", "total"), [(0, 0), (0, 5), (-1, 5), (6, 5)])
def test_an_empty_transfer_is_no_transfer(descriptors: int, total: int) -> None:
    """A descriptor holds a byte at least."""
    with pytest.raises(ValueError, match="at least one descriptor"):
        Transfer(descriptors, total)
