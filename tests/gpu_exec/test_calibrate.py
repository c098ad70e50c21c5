"""Calibration against a card whose cost model is known: what goes in must come out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exec.calibrate import Calibration, Kept
from gpu_exec.calibrate_run import CalibrationResult, refuse_bad_card, run_calibration
from gpu_exec.calibration_points import calibrated_cases
from gpu_exec.matrix import validation_matrix
from gpu_exec.probes import (
    ATTENTION,
    LINEAR,
    MIRROR,
    SCAN,
    TRANSFER,
    GapProbe,
    Notebook,
    StepProbe,
)
from gpu_exec.profile_file import MeasuredLimits, engine_lines, profile_yaml
from gpu_exec.validate import Origin
from oasis_sim.engine.costs import CostModel, GpuShare
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.hardware import (
    Curve,
    EngineCosts,
    HardwareProfile,
    LinearEfficiency,
    Selection,
    Slowdown,
    load_profile,
)
from oasis_sim.hardware.load import read_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from tests.gpu_exec.fake_bench import FakeBench, slower

LIMITS = MeasuredLimits(150_754_820_096, 4.64e12, 55e9, 54e9)


@pytest.fixture(scope="module")
def profile() -> HardwareProfile:
    """Return a card with a known engine: curves with several points, costs that differ."""
    base = load_profile("h200")
    beside_selection = Slowdown(Curve.constant(1.4), attention=1.3, prediction=1.0)
    gather = replace(
        base.engine("gpu_exec").transport("sm_gather"),
        linear_covered=Curve((40.0, 320.0), (1.2, 1.6)),
        qkv_slowdown=Curve((48.0, 176.0, 240.0, 288.0), (1.0, 1.2, 1.4, 1.1)),
    )
    copies = {
        name: replace(base.engine("gpu_exec").transport(name), fixed_ps=0)
        for name in ("copy_engine", "naive")
    }
    rows = (8.0, 48.0, 208.0, 400.0)
    linear = LinearEfficiency(
        qkv=Curve(rows, (0.3, 0.45, 0.4, 0.5)),
        output_ffn=Curve(rows, (0.8, 0.7, 0.55, 0.6)),
        lm_head=Curve((4.0, 24.0, 104.0, 200.0), (0.9, 0.85, 0.8, 0.95)),
    )
    launch = replace(
        base.engine("gpu_exec").launch,
        kernels_per_layer=4,
        step_ps=150_000_000,
        dense_step_ps=90_000_000,
    )
    return slower(
        base,
        linear_efficiency=linear,
        launch=launch,
        transports={"sm_gather": gather, **copies},
        attention_efficiency=Curve((1e7, 1e9), (0.5, 0.9)),
        scan_efficiency=Curve((1e6, 1e9), (0.3, 0.8)),
        dense_attention_efficiency=Curve((1e6, 1e9), (0.6, 0.88)),
        prediction_slowdown=None,
        prediction_inline=True,
        lm_head_per_request=True,
        selection_slowdown=beside_selection,
        draft_layers=Curve((112.0, 304.0), (2.0, 1.1)),
        selection=Selection(6_000_000, 4_000.0, 0.0, per_block_ps=20_000.0),
    )


def calibrate(profile: HardwareProfile, noise: float = 0.0) -> tuple[EngineCosts, Notebook]:
    """Calibrate a fake card that follows the profile's engine."""
    model = load_model("qwen3-8b")
    notebook = Notebook(FakeBench(profile, model, noise))
    kept = Kept.of(profile.engine("gpu_exec"))
    costs = Calibration(notebook, profile, model, kept).costs("fake")
    return costs, notebook


def assert_close(truth: EngineCosts, found: EngineCosts, tolerance: float) -> None:
    """Compare curves at points between and at the measured ones, then the single numbers."""
    for part in ("qkv", "output_ffn", "lm_head"):
        known, back = truth.linear_efficiency.of(part), found.linear_efficiency.of(part)
        for rows in (4, 24, 104, 200) if part == "lm_head" else (8, 48, 208, 400):
            assert pytest.approx(known.at(rows), rel=tolerance) == back.at(rows), (part, rows)
    for name, points in (
        ("attention_efficiency", (4e7, 2e8, 9e8)),
        ("dense_attention_efficiency", (1.5e8, 9e8)),
        ("scan_efficiency", (4.8e7, 4e8)),
    ):
        for x in points:
            expected = getattr(truth, name).at(x)
            assert pytest.approx(expected, rel=tolerance) == getattr(found, name).at(x), (name, x)
    for name in ("per_head_ps", "per_candidate_ps", "fixed_ps", "per_block_ps"):
        expected = getattr(truth.selection, name)
        assert pytest.approx(expected, rel=tolerance) == getattr(found.selection, name)
    for rows in (48, 176, 304):
        expected = truth.draft_layers.at(rows)
        assert pytest.approx(expected, rel=0.03) == found.draft_layers.at(rows)
    for name in ("gap_ps", "kernels_per_layer", "step_ps", "dense_step_ps"):
        expected = getattr(truth.launch, name)
        assert pytest.approx(expected, rel=tolerance) == getattr(found.launch, name), name
    for name, transport in truth.transports.items():
        for unit in (8192, 16384, 32768):
            rate = transport.bytes_per_s.at(unit)
            assert pytest.approx(rate, rel=tolerance) == found.transports[name].bytes_per_s.at(unit)
        beside = found.transports[name].slowdown
        assert pytest.approx(transport.slowdown.linear.at(240), rel=0.05) == beside.linear.at(240)
        assert pytest.approx(transport.slowdown.attention, rel=0.05) == beside.attention
        assert pytest.approx(transport.slowdown.prediction, rel=0.05) == beside.prediction


def test_known_costs_come_back(profile: HardwareProfile) -> None:
    """Every number of the known engine is found again from times alone."""
    costs, _ = calibrate(profile)
    assert_close(profile.engine("gpu_exec"), costs, 0.02)
    truth = profile.engine("gpu_exec")
    for name in ("linear_covered", "qkv_slowdown"):
        known, back = (getattr(c.transports["sm_gather"], name) for c in (truth, costs))
        for rows in (48, 176, 240, 288, 352):
            assert pytest.approx(known.at(rows), rel=0.02) == back.at(rows), (name, rows)
        assert getattr(costs.transports["naive"], name) is None
    selection, found = truth.selection_slowdown, costs.selection_slowdown
    assert pytest.approx(selection.linear.at(176), rel=0.03) == found.linear.at(176)
    assert pytest.approx(selection.attention, rel=0.03) == found.attention
    assert costs.prediction_inline
    assert costs.prediction_slowdown is None


def test_gaps_that_early_launches_hide(profile: HardwareProfile) -> None:
    """Where stages follow each other without a gap, none is counted or taken off."""
    truth = profile.engine("gpu_exec")
    hidden = slower(profile, launch=replace(truth.launch, kernels_per_layer=0))
    costs, _ = calibrate(hidden)
    assert_close(hidden.engine("gpu_exec"), costs, 0.02)


def test_clocks_that_slow_the_stages_change_no_step(profile: HardwareProfile) -> None:
    """Where stages take longer between clocks, the whole steps count and clocks give the split."""
    model, costs = load_model("qwen3-8b"), profile.engine("gpu_exec")
    hidden = slower(profile, launch=replace(costs.launch, kernels_per_layer=0))
    truth = hidden.engine("gpu_exec")
    notebook = Notebook(FakeBench(hidden, model, drag=1.08))
    found = Calibration(notebook, hidden, model, Kept.of(truth)).costs("fake")
    assert_close(truth, found, 0.02)


@pytest.mark.parametrize("batch", [36, 100, 140])
def test_stages_gaps_and_rest_are_the_step(profile: HardwareProfile, batch: int) -> None:
    """A step that was not measured takes the sum of its parts, each counted once."""
    costs, _ = calibrate(profile)
    model, scheme, context = load_model("qwen3-8b"), load_scheme("oasis"), 12_288
    cost = CostModel(slower(profile, **vars(costs)), "gpu_exec", model, scheme, 1)
    share, rows = cost.share, 2 * batch
    attended = batch * scheme.attended_tokens_max * share.kv_bytes_layer
    scanned = batch * (context // scheme.block_tokens) * cost.scan_bytes_per_block()
    layer = cost.linear_ps(share.qkv, rows) + cost.linear_ps(share.output_ffn, rows)
    layer += attended * cost.hbm_ps_per_byte(costs.attention_efficiency.at(attended))
    layer += scanned * cost.hbm_ps_per_byte(costs.scan_efficiency.at(scanned))
    once = cost.linear_ps(share.lm_head, batch) + cost.launch_step_ps(batch)
    step = model.layers * (layer + cost.launch_layer_ps()) + once
    probe = StepProbe((LINEAR, ATTENTION, SCAN, MIRROR), batch, context)
    assert pytest.approx(FakeBench(profile, model).measure_ms(probe, 1), rel=0.01) == step / 1e9


def test_rate_is_that_beside_work(profile: HardwareProfile) -> None:
    """Where transfers slow down beside work, the profile holds that rate and the gain without.

    Copies that the host limits have one rate, that of the whole transfer.
    """
    model = load_model("qwen3-8b")
    truth = profile.engine("gpu_exec")
    notebook = Notebook(FakeBench(profile, model, load=1.1))
    costs = Calibration(notebook, profile, model, Kept.of(truth)).costs("fake")
    for name in ("naive", "copy_engine"):
        found = costs.transports[name]
        for unit in (8192, 16384, 32768):
            known = truth.transports[name].bytes_per_s.at(unit)
            if (name, unit) == ("copy_engine", 8192):
                assert known / 1.1 < found.bytes_per_s.at(unit) < known
                assert 1.0 == found.idle_speedup.at(unit)
                continue
            assert pytest.approx(known / 1.1, rel=0.01) == found.bytes_per_s.at(unit)
            assert pytest.approx(1.1, rel=0.01) == found.idle_speedup.at(unit)


def test_units_that_outlast_all_work_are_refused(profile: HardwareProfile) -> None:
    """Copies of which one takes as long as all the work tell nothing of two lengths."""
    transports = dict(profile.engine("gpu_exec").transports)
    crawling = replace(transports["naive"], bytes_per_s=Curve.constant(1e6))
    with pytest.raises(RunFailed, match="two lengths cannot be told apart"):
        calibrate(slower(profile, transports={**transports, "naive": crawling}))


def test_noise_below_the_bound_is_harmless(profile: HardwareProfile) -> None:
    """With 0.5 % of noise the single-kernel numbers stay within a few percent."""
    costs, notebook = calibrate(profile, noise=0.005)
    truth = profile.engine("gpu_exec")
    for rows in (48, 208):
        expected = truth.linear_efficiency.qkv.at(rows)
        assert pytest.approx(expected, rel=0.03) == costs.linear_efficiency.qkv.at(rows)
    assert not notebook.unstable


def test_rounds_that_disagree_are_refused(profile: HardwareProfile) -> None:
    """A card whose rounds differ by more than 3 % gives a result that fails its check."""
    result = run(profile, noise=0.15)
    assert result.unstable
    assert re.search(r"NOT REPEATABLE within 3 %: .* requests of [\d,]+ tok", result.profile_text)
    assert "StepProbe" not in result.profile_text
    assert "naive and sm_gather gave readings that do not repeat" in result.profile_text
    with pytest.raises(RunFailed, match=r"not repeatable.*--keep-unstable"):
        result.check()


@pytest.mark.parametrize("what", ["HBM", "from the host"])
def test_a_card_faster_than_its_base_is_refused(profile: HardwareProfile, what: str) -> None:
    """The base is of another card, or the readings are wrong: no share of a limit is above 1."""
    gpu = replace(profile.gpu, hbm_bytes_per_s=3.35e12)
    pcie = replace(profile.pcie, bytes_per_s=32e9)
    base = replace(profile, gpu=gpu) if what == "HBM" else replace(profile, pcie=pcie)
    book = Notebook(FakeBench(profile, load_model("qwen3-8b")))
    origin = Origin("FAKE", "580", "2026-01-01T00:00:00Z", "oasis-sim calibrate", "none")
    with pytest.raises(RunFailed, match=f"{what} at .* give --base the profile of this card"):
        run_calibration(book, base, load_model("qwen3-8b"), "fake", origin)


def run(profile: HardwareProfile, noise: float = 0.0) -> CalibrationResult:
    """Run a whole calibration of a fake card."""
    model = load_model("qwen3-8b")
    book = Notebook(FakeBench(profile, model, noise))
    origin = Origin("FAKE", "580", "2026-01-01T00:00:00Z", "oasis-sim calibrate", "none")
    return run_calibration(book, profile, model, "fake", origin)


def test_whole_calibration(profile: HardwareProfile, tmp_path: Path) -> None:
    """The profile's file loads, states its origin, and every reading is kept as raw data."""
    result = run(profile)
    result.check()
    path = tmp_path / "fake.yaml"
    path.write_text(result.profile_text)
    found = read_profile(path)
    assert_close(profile.engine("gpu_exec"), found.engine("gpu_exec"), 0.02)
    assert "calibrate" in found.engine("gpu_exec").source
    raw = json.loads(json.dumps(result.readings, allow_nan=False))
    assert {"GapProbe", "LinkProbe", "ReadProbe", "StageProbe", "StepProbe"} == {
        reading["probe"] for reading in raw["readings"]
    }


def test_odd_profile_name(profile: HardwareProfile) -> None:
    """A name that could not be a file's is refused before anything is measured."""
    bench = FakeBench(profile, load_model("qwen3-8b"))
    origin = Origin("FAKE", "580", "today", "command", "none")
    with pytest.raises(UsageError, match="profile name"):
        run_calibration(Notebook(bench), profile, load_model("qwen3-8b"), "../x", origin)
    assert [] == bench.asked


def test_card_state_is_checked() -> None:
    """A throttled card is refused with its reason."""
    hot = (
        "0, NVIDIA H200, 580.1, 9.0, 143771, 143120, 5, 5, 16, 16, 1, 1, 0, Disabled, "
        "00000000:18:00.0, 0x8"
    )
    with pytest.raises(RunFailed, match="hardware slowdown"):
        refuse_bad_card(lambda command: "" if "pid" in command[1] else hot)


def test_each_probe_is_measured_once(profile: HardwareProfile) -> None:
    """A probe that several numbers need is measured in one set of rounds."""
    bench = FakeBench(profile, load_model("qwen3-8b"))
    notebook = Notebook(bench)
    for _ in range(3):
        notebook.ms(GapProbe())
    assert 3 == len(bench.asked)


def test_a_broken_clock_is_refused(profile: HardwareProfile) -> None:
    """A measurement of zero ends the calibration."""

    class Stopped(FakeBench):
        def measure_ms(self, probe: object, length: int) -> float:
            return 0.0

    with pytest.raises(RunFailed, match="took no time"):
        Notebook(Stopped(profile, load_model("qwen3-8b"))).ms(StepProbe((LINEAR,), 4))


def test_validation_is_held_out(profile: HardwareProfile) -> None:
    """No (batch, context) of the validation matrix is ever measured by calibration."""
    _, notebook = calibrate(profile)
    measured = calibrated_cases(notebook.readings)
    held_out = {(case.batch, case.context_tokens) for case in validation_matrix()}
    assert set() == measured & held_out


def test_transfers_are_never_fitted_in_whole_steps(profile: HardwareProfile) -> None:
    """A transfer runs beside linear layers and attention at most, or beside the scan."""
    _, notebook = calibrate(profile)
    steps = [p for p in notebook.readings if isinstance(p, StepProbe) and TRANSFER in p.stages]
    both = (LINEAR, ATTENTION, TRANSFER)
    assert {p.stages for p in steps} == {
        (TRANSFER,),
        (LINEAR, TRANSFER),
        (ATTENTION, TRANSFER),
        (SCAN, TRANSFER),
        both,
    }
    whole = [p.transport for p in steps if type(p) is StepProbe and p.stages == both]
    assert ["copy_engine"] == whole


# The file ---------------------------------------------------------------------------------------


def test_profile_file_reads_back(profile: HardwareProfile, tmp_path: Path) -> None:
    """The written profile is read by the simulator's own loader with the same engine."""
    costs, _ = calibrate(profile)
    text = profile_yaml("my-card", profile, LIMITS, costs, ["made by a test", "second line"])
    path = tmp_path / "my-card.yaml"
    path.write_text(text)
    found = read_profile(path)
    assert_close(costs, found.engine("gpu_exec"), 1e-4)
    assert ("my-card", "measured") == (found.name, found.origin)
    assert LIMITS.hbm_bytes == found.gpu.hbm_bytes
    assert pytest.approx(55e9) == found.pcie.usable_bytes_per_s
    assert "measured" in found.sources["pcie.usable_bandwidth"]
    assert profile.nvlink == found.nvlink
    assert found.engine("gpu_exec").draft_reads_kv
    for name in ("linear_covered", "qkv_slowdown"):
        gathers = (c.transports["sm_gather"] for c in (costs, found.engine("gpu_exec")))
        one, other = (getattr(gather, name) for gather in gathers)
        assert one.x == other.x
        assert pytest.approx(one.y, rel=1e-4) == other.y


def test_draft_reads_its_kv(profile: HardwareProfile) -> None:
    """A calibrated draft costs its linear layers plus one read of its KV at dense efficiency."""
    model, scheme = load_model("qwen3-8b"), load_scheme("oasis")
    tokens = 128 * 16_384
    size = tokens * GpuShare(model, 1).draft_bytes_token(scheme)
    plain, reading = (
        CostModel(slower(profile, draft_reads_kv=reads), "gpu_exec", model, scheme, 1)
        for reads in (False, True)
    )
    extra = reading.draft_ps(256, tokens) - plain.draft_ps(256, tokens)
    efficiency = profile.engine("gpu_exec").dense_attention_efficiency.at(size)
    expected = size / profile.gpu.hbm_bytes_per_s / efficiency
    assert pytest.approx(expected, rel=1e-6) == extra / 1e12


def test_profile_text_is_safe(profile: HardwareProfile, tmp_path: Path) -> None:
    """Names with quotes, colons and control characters cannot break the file."""
    costs = replace(profile.engine("gpu_exec"), source='a "b": {c}\n\x1b[31m \\ #d')
    path = tmp_path / "odd.yaml"
    path.write_text(profile_yaml('x": y', profile, LIMITS, costs, ["odd"]))
    assert 'x": y' == read_profile(path).name


def test_inline_prediction_and_linear_layers_by_group_come_back(
    profile: HardwareProfile, tmp_path: Path
) -> None:
    """What is written of an engine is read again, for either kind of engine."""
    shares = [Curve((8.0, 64.0), (share, 0.9)) for share in (0.4, 0.5, 0.6)]
    apart = {"linear_efficiency": LinearEfficiency(*shares)}
    inline = {"prediction_inline": True, "prediction_slowdown": None}
    path = tmp_path / "inline.yaml"
    for changes in ({}, apart, inline, apart | inline):
        costs = replace(profile.engine("gpu_exec"), **changes)
        path.write_text(profile_yaml("inline", profile, LIMITS, costs, ["inline"]))
        back = read_profile(path).engine("gpu_exec")
        assert costs.linear_efficiency == back.linear_efficiency
        assert costs.prediction_inline == back.prediction_inline
        assert costs.prediction_slowdown == back.prediction_slowdown


def test_engine_section_is_complete(profile: HardwareProfile) -> None:
    """Every field of the cost model stands in the section."""
    text = "\n".join(engine_lines(profile.engine("gpu_exec")))
    for key in ("linear_efficiency", "per_candidate_ps", "dense_step", "copy_engine", "hbm_share"):
        assert key in text
