"""Capacities that the user knows better than the profile: HBM and the host link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oasis_sim.errors import UsageError
from oasis_sim.hardware import load_profile, with_capacities

GENERATIONS = {"4": 32e9, "5": 64e9, "6": 128e9}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_generation_sets_the_link_and_keeps_the_shares(generation: str) -> None:
    """Nominal rate of x16, 86 % usable, every transport at its share; the roofline at nominal."""
    old = load_profile("h100")
    new = with_capacities(old, None, generation)
    assert GENERATIONS[generation] == new.pcie.bytes_per_s
    assert pytest.approx(55 / 64) == new.pcie.usable_bytes_per_s / new.pcie.bytes_per_s
    factor = new.pcie.usable_bytes_per_s / old.pcie.usable_bytes_per_s
    for name, transport in old.engine("vllm").transports.items():
        moved = new.engine("vllm").transport(name).bytes_per_s.y
        assert pytest.approx([factor * rate for rate in transport.bytes_per_s.y]) == moved
    ideal = new.engine("roofline").transport("sm_gather").bytes_per_s
    assert GENERATIONS[generation] == ideal.at(4096)
    assert old.gpu == new.gpu
    assert "--pcie" in new.sources["pcie.bandwidth"]


@given(st.integers(1, 64))
def test_a_measured_rate_leaves_the_nominal_one(gigabytes: int) -> None:
    """What a copy reached is usable; the bound of predictions stays the link's own."""
    old = load_profile("h100")
    new = with_capacities(old, None, f"{gigabytes} GB/s").pcie
    assert (old.pcie.bytes_per_s, gigabytes * 1e9) == (new.bytes_per_s, new.usable_bytes_per_s)


def test_hbm_is_replaced_alone() -> None:
    """The capacity and its source change, nothing else."""
    old = load_profile("h100")
    new = with_capacities(old, 70 * 10**9, None)
    assert 70 * 10**9 == new.gpu.hbm_bytes
    assert "--hbm-memory" in new.sources["gpu.hbm_capacity"]
    assert (old.pcie, old.engines) == (new.pcie, new.engines)
    assert old == with_capacities(old, None, None)


@pytest.mark.parametrize("text", ["", "7", "PCIe 5", "80 GB/s", "0 GB/s", "5 GB", "\x1b[31m"])
def test_what_is_no_link_is_refused(text: str) -> None:
    """One sentence that says what can be written; control characters are shown harmless."""
    with pytest.raises(UsageError, match="--pcie") as caught:
        with_capacities(load_profile("h100"), None, text)
    assert str(caught.value).isprintable()
