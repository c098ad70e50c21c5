"""Profiles of cards that were not measured here: datasheet limits, and what is taken over."""

from __future__ import annotations

import pytest

from oasis_sim.hardware import load_profile

# Dense BF16 TFLOP/s, HBM GB and GB/s, host link GB/s one way, as the tables say that the profiles
# name; and watts.
WATTS = {
    "a100": 400,
    "h100": 700,
    "h100-pcie": 350,
    "h200": 700,
    "b200": 1000,
    "gb200": 1200,
    "l40s": 350,
    "rtx-pro-6000": 600,
    "mi300x": 750,
}
CARDS = {
    "a100": (312, 80, 2039, 32),
    "h100-pcie": (756, 80, 2000, 64),
    "b200": (2250, 180, 8000, 64),
    "gb200": (2500, 186, 8000, 225),
    "l40s": (362, 48, 864, 32),
    "rtx-pro-6000": (503.8, 96, 1792, 64),
    "mi300x": (1307.4, 192, 5300, 64),
}


@pytest.mark.parametrize("name", CARDS)
def test_limits_are_those_of_the_datasheet(name: str) -> None:
    """The profile says datasheet, and its limits are the vendor's."""
    profile, (tflops, hbm_gb, hbm_gb_per_s, link_gb_per_s) = load_profile(name), CARDS[name]
    assert "datasheet" == profile.origin
    assert pytest.approx(tflops * 1e12) == profile.gpu.bf16_flops_per_s
    assert hbm_gb * 10**9 == profile.gpu.hbm_bytes
    assert pytest.approx(hbm_gb_per_s * 1e9) == profile.gpu.hbm_bytes_per_s
    assert pytest.approx(link_gb_per_s * 1e9) == profile.pcie.bytes_per_s


@pytest.mark.parametrize("name", CARDS)
def test_what_was_not_measured_says_so(name: str) -> None:
    """Engine, usable rates and latencies name their origin and that they were not measured."""
    profile = load_profile(name)
    assert "not measured on" in profile.engine("vllm").source
    for key in ("pcie.usable_bandwidth", "pcie.latency", "nvlink.latency"):
        assert "not measured here" in profile.sources[key]


@pytest.mark.parametrize("name", CARDS)
def test_a_transport_taken_over_has_the_same_share_of_the_link(name: str) -> None:
    """On a link half as fast the same engine moves blocks half as fast."""
    other, profile = load_profile("h100"), load_profile(name)
    shares = [
        max(each.engine("vllm").transport("sm_gather").bytes_per_s.y) / each.pcie.usable_bytes_per_s
        for each in (other, profile)
    ]
    assert pytest.approx(shares[0]) == shares[1]


@pytest.mark.parametrize("name", WATTS)
def test_power_is_that_of_the_board(name: str) -> None:
    """Each built-in card knows the most that its board draws, and where that is said."""
    profile = load_profile(name)
    assert WATTS[name] == profile.gpu.power_w
    assert "." in profile.sources["gpu.power"]
