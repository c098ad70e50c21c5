"""Two profiles side by side: every measured number, by the time that it predicts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_exec.repeatability import Comparison, beside, to_json
from oasis_sim.hardware import Curve, HardwareProfile, load_profile
from oasis_sim.model import load_model
from tests.gpu_exec.fake_bench import slower


def differences(first: HardwareProfile, second: HardwareProfile) -> dict[str, float]:
    """Return the numbers that differ, in percent."""
    numbers = Comparison(first, second, load_model("qwen3-8b")).numbers()
    return {n.field: n.difference_pct for n in numbers if n.difference_pct > 1e-9}


@pytest.fixture
def profile() -> HardwareProfile:
    """Return the shipped profile."""
    return load_profile("h200")


def test_a_profile_agrees_with_itself(profile: HardwareProfile) -> None:
    """Nothing differs."""
    assert {} == differences(profile, profile)


def test_rates_differ_by_the_time_of_a_transfer(profile: HardwareProfile) -> None:
    """A transport that is slower by a tenth takes a tenth longer, but for the time of the work."""
    transports = dict(profile.engine("gpu_exec").transports)
    rate = transports["naive"].bytes_per_s
    slow = Curve(rate.x, (rate.y[0] / 1.1, *rate.y[1:]))
    transports["naive"] = replace(transports["naive"], bytes_per_s=slow)
    found = differences(profile, slower(profile, transports=transports))
    short, long = (
        f"transports.naive, {share} times as long as work, 8192 bytes" for share in ("1.5", "3")
    )
    assert {short, long} == set(found)
    assert 0.0 < found[short] < found[long] < 10.0


def test_slowdowns_differ_by_the_time_of_what_they_slow(profile: HardwareProfile) -> None:
    """Beside something short, standing still and running at a hundredth are almost the same."""
    costs = profile.engine("gpu_exec")
    first, second = (
        slower(profile, selection_slowdown=replace(costs.selection_slowdown, attention=factor))
        for factor in (1000.0, 100.0)
    )
    found = differences(first, second)
    assert ["selection_slowdown.attention"] == list(found)
    assert found["selection_slowdown.attention"] < 1.0
    assert pytest.approx(1.0 + 0.7 * 0.5) == beside(2.0, 0.7)


def test_every_measured_part_is_compared(profile: HardwareProfile) -> None:
    """No curve, transport or cost that calibration measures is left out."""
    fields = [n.field for n in Comparison(profile, profile, load_model("qwen3-8b")).numbers()]
    for start in (
        "linear_efficiency.qkv",
        "linear_efficiency.output_ffn",
        "linear_efficiency.lm_head",
        "attention_efficiency",
        "dense_attention_efficiency",
        "scan_efficiency",
        "selection,",
        "selection_slowdown.linear",
        "selection_slowdown.attention",
        "launch.gap",
        "launch.step",
        "launch.dense_step",
        "draft_layers",
        "pcie.usable_bandwidth",
        "transports.sm_gather.linear_covered",
        "transports.sm_gather.qkv_slowdown",
        *(f"transports.{name}.fixed" for name in ("sm_gather", "copy_engine", "naive")),
        *(f"transports.{name}.slowdown" for name in ("sm_gather", "copy_engine", "naive")),
    ):
        assert any(field.startswith(start) for field in fields), start


def test_the_file_names_the_largest(profile: HardwareProfile) -> None:
    """Its summary holds the largest difference and where it is."""
    launch = profile.engine("gpu_exec").launch
    other = slower(profile, launch=replace(launch, gap_ps=round(1.04 * launch.gap_ps)))
    numbers = Comparison(profile, other, load_model("qwen3-8b")).numbers()
    document = json.loads(json.dumps(to_json(numbers, {"gpu": "FAKE"}), allow_nan=False))
    assert document["summary"]["largest"].startswith("launch.gap")
    assert pytest.approx(4.0, abs=1e-3) == document["summary"]["largest_difference_pct"]
    assert len(numbers) == document["summary"]["numbers"] == len(document["numbers"])
