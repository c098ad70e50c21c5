"""Prediction in the foreground, between QKV and attention: what it delays and what delays it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from oasis_sim.engine import RunResult, simulate
from oasis_sim.engine.result import STAGES
from oasis_sim.engine.state import (
    OUT_ATTENTION,
    OUT_DRAFT,
    OUT_END,
    OUT_FFN,
    OUT_LAUNCH,
    OUT_LM_HEAD,
    OUT_PREDICTION,
    OUT_PREFILL,
    OUT_QKV,
    OUT_SELECTION,
    OUT_START,
    OUT_TRANSFER,
    OUT_WAIT,
    StepTimes,
    new_state,
)
from oasis_sim.engine.streams import ATTENTION, BACKGROUND, LINEAR, PREDICTION, RATE_ONE, TRANSFER
from oasis_sim.hardware import Curve, HardwareProfile
from oasis_sim.report.timeline import waiting_slices, write_timeline
from oasis_sim.scheme import load_scheme, scheme_names
from tests.engine.scenarios import card, scenario
from tests.engine.test_pipeline import Case, compiled, grouped, one_step, pipelines, step_times

STAGE_TIMES = {"qkv": 10, "prediction": 20, "selection": 5, "attention": 30, "output_ffn": 40}
FOREGROUND = (OUT_QKV, OUT_ATTENTION, OUT_FFN, OUT_LM_HEAD, OUT_DRAFT, OUT_LAUNCH, OUT_PREFILL)


def inline_times(**changes: object) -> StepTimes:
    """Return a layer of 10 + 20 + 30 + 40, with 5 of selection beside it."""
    return step_times(**{**STAGE_TIMES, "inline": True, **changes})


def inline_card() -> HardwareProfile:
    """Return the card whose engine vllm runs prediction in the foreground."""
    return with_costs(card(8 * 10**9), prediction_inline=True, prediction_slowdown=None)


def with_costs(profile: HardwareProfile, **changes: object) -> HardwareProfile:
    """Return the profile with parts of its engine vllm changed."""
    costs = dataclasses.replace(profile.engine("vllm"), **changes)
    return dataclasses.replace(profile, engines={**profile.engines, "vllm": costs})


def stage(result: RunResult, name: str) -> np.ndarray:
    """Return a stage's time in every step, int64[S]."""
    return result.steps.stage_ps[:, STAGES.index(name)]


def test_stages_of_a_layer_follow_one_another() -> None:
    """Two layers, both moving 50: prediction is a fourth stage, selection is beside attention."""
    moves = np.array([[50, 50]])
    out, marks = one_step(new_state(2), inline_times(), *grouped(moves))
    assert marks[0].tolist() == [
        [0, 10, 30, 60, 60, 100, 10, 30, 30, 35, 60, 110],
        [100, 110, 130, 160, 160, 200, 110, 130, 130, 135, 160, 210],
    ]
    assert (out[OUT_START], out[OUT_END], out[OUT_WAIT]) == (0, 200, 0)
    assert [out[c] for c in (OUT_QKV, OUT_PREDICTION, OUT_ATTENTION, OUT_FFN)] == [20, 40, 60, 80]
    assert [out[c] for c in (OUT_SELECTION, OUT_TRANSFER)] == [10, 100]


def test_it_disturbs_nothing() -> None:
    """Neighbours of a prediction stand still; inline it has none."""
    rates = np.full((3, 3), RATE_ONE, dtype=np.int64)
    rates[[LINEAR, ATTENTION], PREDICTION] = 0
    (out,) = compiled([inline_times(rates=rates)], [[0, 0]])
    assert out[OUT_END] == 200
    (beside,) = compiled([inline_times(rates=rates, inline=False)], [[0, 0]])
    assert beside[OUT_END] == 200  # attention waits until the prediction beside it has ended
    assert beside[OUT_ATTENTION] == 2 * (20 + 30)


def test_a_transfer_slows_it_and_the_step() -> None:
    """Layer 0 moves from 60 to 120, so that 10 of the prediction from 110 on run at half rate."""
    rates = np.full((3, 3), RATE_ONE, dtype=np.int64)
    rates[BACKGROUND, TRANSFER] = RATE_ONE // 2
    out, marks = one_step(new_state(2), inline_times(rates=rates), *grouped(np.array([[60, 0]])))
    assert marks[0, 1, [6, 7, 2, 3]].tolist() == [110, 135, 135, 165]
    assert (out[OUT_PREDICTION], out[OUT_END], out[OUT_WAIT]) == (45, 205, 0)


def test_attention_waits_for_its_transfer_after_the_prediction() -> None:
    """Layer 1 moves from 160 to 360 and asks 30 too early, at 330, for its second attention."""
    first, second = compiled([inline_times()] * 2, [[0, 200], [0, 0]])
    assert first[OUT_WAIT] == 0
    assert (second[OUT_WAIT], second[OUT_PREDICTION]) == (30, 40)
    assert second[OUT_END] - second[OUT_START] == 230


def test_a_queue_of_selections_delays_transfers_alone() -> None:
    """Selection of 150 per layer: that of layer 1 begins when the first has ended, at 180."""
    times = inline_times(selection=150)
    out, marks = one_step(new_state(2), times, *grouped(np.array([[10, 10]])))
    assert marks[0, :, 8].tolist() == [30, 180]
    assert marks[0, :, 10].tolist() == [180, 330]
    assert out[OUT_END] == 200


def test_one_layer_ahead_and_with_a_correction() -> None:
    """Transfers that follow selection begin after the prediction, in front of attention or not."""
    ahead = compiled([inline_times(next_layer=True)] * 4, [[80, 80]] * 4)[-1]
    # From selection's end at 35 on, 80 for the next layer, which asks at 130: nothing waits.
    assert ahead[OUT_END] - ahead[OUT_START] == 200
    late = compiled([inline_times(next_layer=True)] * 4, [[150, 150]] * 4)[-1]
    assert late[OUT_END] - late[OUT_START] == 300
    corrected = compiled([inline_times(correction=RATE_ONE // 4)], [[40, 40]])[0]
    # Each layer: 5 of selection and a quarter of its 40.
    assert (corrected[OUT_WAIT], corrected[OUT_END]) == (30, 230)
    assert corrected[OUT_PREDICTION] == 40


def test_ranks_meet_behind_it() -> None:
    """The rank whose transfer slows its prediction decides when the others go on."""
    rates = np.full((3, 3), RATE_ONE, dtype=np.int64)
    rates[BACKGROUND, TRANSFER] = RATE_ONE // 2
    out = compiled([inline_times(rates=rates)], [[[0, 0], [60, 0]]])[0]
    assert (out[OUT_PREDICTION], out[OUT_END]) == (45, 205)


@given(pipelines())
@settings(max_examples=200, deadline=None)
def test_the_foreground_adds_up_to_the_step(case: Case) -> None:
    """Stages that follow one another, and the wait, are the whole step, on any number of ranks."""
    steps, transfers = case
    steps = [times._replace(d2h=0) for times in steps]
    for times, out in zip(steps, compiled(steps, transfers), strict=True):
        total = sum(out[column] for column in FOREGROUND) + out[OUT_WAIT]
        total += out[OUT_PREDICTION] if times.inline else 0
        assert total == out[OUT_END] - out[OUT_START]


@pytest.mark.parametrize("name", scheme_names())
def test_schemes_of_every_kind_run_with_it(name: str) -> None:
    """On demand and dense nothing changes; else a scan, if there is one, is in the foreground."""
    beside, inline = simulate(scenario(name)), simulate(scenario(name, profile=inline_card()))
    scheme = load_scheme(name)
    if scheme.on_demand or not scheme.selects:
        assert np.array_equal(beside.steps.end_ps, inline.steps.end_ps)
        assert np.array_equal(beside.steps.stage_ps, inline.steps.stage_ps)
        return
    columns = ("qkv", "attention", "output_ffn", "lm_head", "draft", "launch", "prefill")
    front = sum(stage(inline, column) for column in (*columns, "transfer_wait", "prediction"))
    lengths = inline.steps.end_ps - inline.steps.start_ps
    # New KV that is late in host memory is what no stage accounts for.
    assert np.all(front <= lengths)
    assert np.median(lengths - front) == 0
    scans = bool(stage(beside, "prediction").any())
    assert scans == bool(stage(inline, "prediction").any())
    assert inline.steps.end_ps[-1] >= beside.steps.end_ps[-1]
    write_timeline(inline)  # refuses slices of a track that overlap


def test_the_timeline_shows_it_on_the_compute_track() -> None:
    """Between QKV and attention of its layer; what is left between them is the wait."""
    result = simulate(scenario("oasis", profile=inline_card()))
    by_layer: dict[tuple[object, object], dict[str, tuple[int, int]]] = {}
    for each in result.slices:
        if each.track == "compute" and "layer" in each.args:
            layer = by_layer.setdefault((each.args["step"], each.args["layer"]), {})
            layer[str(each.args["stage"])] = each.start_ps, each.end_ps
    scanned = [layer for layer in by_layer.values() if "prediction" in layer]
    assert len(scanned) >= 4
    for layer in scanned:
        assert layer["qkv"][1] == layer["prediction"][0]
        assert layer["prediction"][1] <= layer["attention"][0]
    waits = [each.end_ps - each.start_ps for each in waiting_slices(result.slices)]
    gaps = [layer["attention"][0] - layer["prediction"][1] for layer in scanned]
    assert sorted(waits) == sorted(gap for gap in gaps if gap)


def test_an_adaptive_cap_hides_under_it_too() -> None:
    """A longer foreground leaves more room for transfers that hide."""
    moved = []
    for profile in (card(8 * 10**9), inline_card()):
        slow = with_costs(profile, scan_efficiency=Curve.constant(1e-5))
        link = slow.engine("vllm").transport("sm_gather")
        link = dataclasses.replace(link, bytes_per_s=Curve.constant(30e6), fixed_ps=0)
        slow = with_costs(slow, transports={"sm_gather": link})
        result = simulate(scenario("oasis-adaptive", profile=slow))
        moved.append(int(result.steps.admitted_blocks.sum()))
    assert moved[1] > 1.2 * moved[0]
