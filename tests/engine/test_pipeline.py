"""The compiled step pipeline: equal to its event-driven twin, and exact in the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oasis_sim.engine import layer, pipeline
from oasis_sim.engine.pipeline import run_step
from oasis_sim.engine.state import (
    AS_LINEAR,
    OUT_COLUMNS,
    OUT_END,
    OUT_PREDICTION,
    OUT_START,
    OUT_TRANSFER,
    OUT_WAIT,
    QKV,
    PipelineState,
    StepTimes,
    new_marks,
    new_state,
)
from oasis_sim.engine.streams import BACKGROUND, RATE_ONE
from tests.engine.event_pipeline import EventPipeline


def step_times(**changes: object) -> StepTimes:
    """Return a step in which nothing takes time or disturbs, with changes."""
    zero = StepTimes(
        prefill=0,
        qkv=0,
        attention=0,
        output_ffn=0,
        lm_head=0,
        draft=0,
        prediction=0,
        selection=0,
        launch_per_layer=0,
        launch_per_step=0,
        d2h=0,
        on_demand=False,
        rates=np.full((3, 3), RATE_ONE, dtype=np.int64),
        join=False,
    )
    return zero._replace(**changes)


def compiled(
    steps: list[StepTimes], transfers: list[list[int]] | list[list[list[int]]]
) -> list[np.ndarray]:
    """Run steps through the compiled recurrence and return their results.

    `transfers` are by step and layer, or by step, rank and layer.
    """
    moves = np.array(transfers, dtype=np.int64)
    moves = moves[:, None] if moves.ndim == 2 else moves
    state = new_state(moves.shape[2], moves.shape[1])
    return [
        one_step(state, times, *grouped(each))[0] for times, each in zip(steps, moves, strict=True)
    ]


def grouped(moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kinds int64[G, R] of a step's transfers int64[R, L], and each layer's kind."""
    kinds, group = np.unique(moves, axis=1, return_inverse=True)
    return np.ascontiguousarray(kinds.T), group.reshape(-1)


def one_step(
    state: PipelineState, times: StepTimes, kinds: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Run one step and return its result and marks."""
    out = np.zeros(OUT_COLUMNS, dtype=np.int64)
    marks = new_marks(state)
    run_step(state, times, kinds, group.astype(np.int64), out, marks)
    return out, marks


Case = tuple[list[StepTimes], list[list[list[int]]]]

durations = st.integers(0, 2_000)
idle_shares = st.sampled_from([RATE_ONE, RATE_ONE, RATE_ONE // 2, 700_000])
rate = st.sampled_from([0, RATE_ONE // 3, RATE_ONE // 2, 700_000, RATE_ONE])
covered_rates = st.sampled_from([0, 0, RATE_ONE // 4, RATE_ONE // 2, 800_000, RATE_ONE])
collectives = st.sampled_from([0, 0, 7, 500])
own_rates = st.lists(
    st.sampled_from(
        [
            (-1, -1, -1),
            (RATE_ONE // 2, RATE_ONE, 700_000),
            (RATE_ONE // 3, 0, RATE_ONE),
            (RATE_ONE, RATE_ONE // 2, 0),
        ]
    ),
    min_size=len(AS_LINEAR),
    max_size=len(AS_LINEAR),
).map(lambda rows: np.array(rows, dtype=np.int64))


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    """Draw a few steps with random stages, transfers and rates, one mode for all of them."""
    layers, ranks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    on_demand, next_layer = draw(st.sampled_from([(0, 0), (1, 0), (0, 1)]))
    correction = 0 if on_demand or next_layer else draw(st.sampled_from([0, RATE_ONE // 3]))
    inline = not on_demand and draw(st.booleans())
    steps, transfers = [], []
    for _ in range(draw(st.integers(1, 5))):
        rates = np.array([[draw(rate) for _ in range(3)] for _ in range(3)], dtype=np.int64)
        # Prediction is slowed by transfers only.
        rates[BACKGROUND, 1:] = RATE_ONE
        idle = draw(idle_shares)
        if idle < RATE_ONE and not inline:  # else it might outlast the step, which drain leaves
            rates[BACKGROUND] = RATE_ONE
        numbers = [draw(durations) for _ in range(11)]
        modes = (bool(next_layer), correction, idle, draw(covered_rates), draw(collectives), inline)
        own = draw(own_rates)
        steps.append(StepTimes(*numbers, bool(on_demand), rates, draw(st.booleans()), *modes, own))
        transfers.append([[draw(durations) for _ in range(layers)] for _ in range(ranks)])
    return steps, transfers


@given(pipelines())
@settings(max_examples=300, deadline=None)
def test_compiled_equals_events(case: Case) -> None:
    """The recurrence gives the same integers as processes on an event queue."""
    steps, transfers = case
    twin = EventPipeline(steps, transfers)
    expected = twin.run()
    results = compiled(steps, transfers)
    assert expected == [int(out[OUT_END]) for out in results]
    assert twin.waits == [int(out[OUT_WAIT]) for out in results]
    for times, out, predicted in zip(steps, results, twin.predicted, strict=True):
        assert predicted == (out[OUT_PREDICTION] if times.inline else 0)


@st.composite
def alike_layers(draw: st.DrawFn) -> Case:
    """Draw steps of up to 24 layers with at most two kinds of transfer, that settle soon."""
    layers, ranks = draw(st.integers(6, 24)), draw(st.sampled_from([1, 1, 2, 3]))
    on_demand, next_layer = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 1)]))
    correction = 0 if on_demand or next_layer else draw(st.sampled_from([0, 0, RATE_ONE // 3]))
    inline = not on_demand and draw(st.booleans())
    slow = draw(st.sampled_from([rate, st.just(RATE_ONE)]))
    rates = np.array([[draw(slow) for _ in range(3)] for _ in range(3)], dtype=np.int64)
    rates[BACKGROUND, 1:] = RATE_ONE
    idle = draw(idle_shares)
    if idle < RATE_ONE and not inline:
        rates[BACKGROUND] = RATE_ONE
    covered, apart, own = draw(covered_rates), draw(collectives), draw(own_rates)
    short, long = st.integers(0, 40), st.sampled_from([0, 10, 90, 200])
    numbers = [draw(short) for _ in range(11)]
    join = draw(st.booleans())
    steps, transfers = [], []
    for _ in range(draw(st.integers(1, 5))):
        # Attention takes longer as contexts grow.
        numbers[2] += draw(st.integers(0, 2))
        modes = (bool(next_layer), correction, idle, covered, apart, inline)
        steps.append(StepTimes(*numbers, bool(on_demand), rates, join, *modes, own))
        other = draw(st.integers(0, layers))
        moves = []
        for _ in range(ranks):
            first, second = draw(st.tuples(short, short) | st.tuples(long, long))
            second = draw(st.sampled_from([first, second]))
            moves.append([first] * other + [second] * (layers - other))
        transfers.append(moves)
    return steps, transfers


def a_gap_in_what_the_link_has_to_do() -> Case:
    """Return steps in which a link is behind, but idle for 2 ps while one layer's QKV runs."""
    own = AS_LINEAR.copy()
    own[QKV] = RATE_ONE // 2, RATE_ONE, RATE_ONE
    first = step_times(qkv=25, attention=2, output_ffn=4, selection=18, collective=7, own=own)
    none, long = [0] * 8, [0] + [200] * 7
    return [first, first._replace(attention=3)], [[none, none, long], [none, [90] * 8, none]]


@given(alike_layers())
@example(a_gap_in_what_the_link_has_to_do())
@settings(max_examples=1500, deadline=None)
def test_layers_passed_over_equal_layers_computed(case: Case) -> None:
    """A step in which no two layers are of one group gives the same times, layer by layer."""
    steps, transfers = case
    ranks, layers = len(transfers[0]), len(transfers[0][0])
    brief, full = new_state(layers, ranks), new_state(layers, ranks)
    for times, transfer in zip(steps, transfers, strict=True):
        each = np.array(transfer, dtype=np.int64)
        out, marks = one_step(brief, times, *grouped(each))
        alone = np.ascontiguousarray(each.T), np.arange(layers)
        full_out, full_marks = one_step(full, times, *alone)
        np.testing.assert_array_equal(out, full_out)
        np.testing.assert_array_equal(marks, full_marks)
        np.testing.assert_array_equal(brief.transfer_end, full.transfer_end)


@given(alike_layers())
@settings(max_examples=100, deadline=None)
def test_alike_layers_equal_events(case: Case) -> None:
    """Layers passed over end when those of the event queue do."""
    steps, transfers = case
    twin = EventPipeline(steps, transfers)
    assert twin.run() == [int(out[OUT_END]) for out in compiled(steps, transfers)]


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_time_never_runs_backwards(case: Case) -> None:
    """Steps follow each other without gap or overlap; the rank that moves most is counted whole."""
    steps, transfers = case
    results = compiled(steps, transfers)
    now = 0
    for times, out, transfer in zip(steps, results, transfers, strict=True):
        assert out[OUT_START] == now
        assert out[OUT_END] >= out[OUT_START]
        whole = times.idle == RATE_ONE or not times.join
        most = max(sum(moves) for moves in transfer)
        assert out[OUT_TRANSFER] == most if whole else out[OUT_TRANSFER] <= most
        now = out[OUT_END]


def test_the_rest_of_a_transfer_runs_alone() -> None:
    """Beside work a transfer takes its time; what is left then takes a share of it."""
    times = step_times(qkv=100, attention=100, output_ffn=100, join=True, idle=RATE_ONE // 2)
    (out, after) = compiled([times, times], [[1_000], [0]])
    assert (out[OUT_END], out[OUT_TRANSFER]) == (300 + 900 // 2, 100 + 900 // 2)
    assert after[OUT_END] - after[OUT_START] == 300
    (out,) = compiled([times], [[10**16]])  # three hours: the product passes 64 bits
    assert out[OUT_END] == 300 + (10**16 - 100) // 2


@pytest.mark.parametrize("transfer", [400, 900])
def test_joined_streams_expose_the_last_transfers(transfer: int) -> None:
    """When a step ends with its streams, it takes the first attention and then all transfers."""
    layers = 6
    times = step_times(qkv=100, attention=200, output_ffn=100, join=True)
    (out,) = compiled([times], [[transfer] * layers])
    link_bound = 300 + layers * transfer
    compute_bound = layers * 400 - 100 + transfer
    assert max(link_bound, compute_bound) == out[OUT_END]
    assert out[OUT_END] - layers * 400 == out[OUT_WAIT]


@pytest.mark.parametrize(("compute", "transfer"), [(900, 400), (400, 900), (500, 500)])
def test_perfect_prefetch_is_the_maximum(compute: int, transfer: int) -> None:
    """With nothing but compute and transfer, a steady step takes the longer of the two."""
    layers, steps = 6, 40
    times = step_times(output_ffn=compute)
    results = compiled([times] * steps, [[transfer] * layers] * steps)
    last = results[-1]
    assert layers * max(compute, transfer) == last[OUT_END] - last[OUT_START]


@pytest.mark.parametrize(("compute", "transfer"), [(900, 400), (400, 900)])
def test_no_overlap_is_the_sum(compute: int, transfer: int) -> None:
    """On demand, a step takes compute plus transfer, exactly."""
    layers = 6
    times = step_times(output_ffn=compute, on_demand=True)
    last = compiled([times] * 5, [[transfer] * layers] * 5)[-1]
    assert layers * (compute + transfer) == last[OUT_END] - last[OUT_START]
    assert layers * transfer == last[OUT_WAIT]


@pytest.mark.parametrize(("compute", "transfer"), [(900, 400), (400, 900)])
def test_one_layer_ahead_hides_under_one_layer(compute: int, transfer: int) -> None:
    """Fetching during the layer before, a steady layer takes the longer of the two."""
    layers = 6
    times = step_times(output_ffn=compute, next_layer=True)
    last = compiled([times] * 9, [[transfer] * layers] * 9)[-1]
    assert layers * max(compute, transfer) == last[OUT_END] - last[OUT_START]


def test_a_correction_waits_for_its_share() -> None:
    """A quarter of each transfer stands before attention, the rest hides under the compute."""
    layers = 6
    times = step_times(output_ffn=900, correction=RATE_ONE // 4)
    last = compiled([times] * 9, [[400] * layers] * 9)[-1]
    assert layers * (900 + 100) == last[OUT_END] - last[OUT_START]
    assert layers * 400 == last[OUT_TRANSFER]


def test_slowdown_applies_while_the_neighbour_is_busy() -> None:
    """Work at half rate beside a transfer of 100 loses 50 of its 100 picoseconds there."""
    rates = np.full((3, 3), RATE_ONE, dtype=np.int64)
    rates[0, 0] = RATE_ONE // 2
    first = step_times(output_ffn=200, rates=rates)
    out = compiled([first], [[100]])[0]
    assert 250 == out[OUT_END]


def test_a_slot_is_not_overwritten_before_it_is_read() -> None:
    """A transfer of layer l starts only when this step's attention of l has read the slots."""
    state = new_state(1)
    out = np.zeros(OUT_COLUMNS, dtype=np.int64)
    marks = new_marks(state)
    run_step(state, step_times(attention=500), np.array([[10]]), np.array([0]), out, marks)
    attention_end, move_start = marks[0, 0, 3], marks[0, 0, 10]
    assert 500 == attention_end
    assert move_start >= attention_end


def test_one_late_layer_delays_the_step() -> None:
    """The step after a long transfer of one layer waits for that layer and no other."""
    times = step_times(qkv=10, attention=10, output_ffn=10)
    results = compiled([times, times], [[0, 1_000, 0, 0], [0, 0, 0, 0]])
    # Layer 1 of step 0 is read at 50 and moves until 1,050; step 1 needs it at 120 + 40.
    assert 1_050 - 160 == results[1][OUT_WAIT]


def layers_computed(
    monkeypatch: pytest.MonkeyPatch, times: StepTimes, moves: list[int], layers: int
) -> int:
    """Return how many layers of the tenth equal step are computed, not passed over."""
    computed = []

    def run_layer(*arguments: Any) -> int:
        computed.append(arguments)
        end: int = layer.run_layer(*arguments)
        return end

    monkeypatch.setattr(pipeline, "run_layer", run_layer)
    monkeypatch.setattr(pipeline, "_run_layers", pipeline._run_layers.py_func)
    state, kinds = new_state(layers, len(moves)), np.array([moves], dtype=np.int64)
    group, marks = np.zeros(layers, dtype=np.int64), new_marks(state)
    out = np.zeros(OUT_COLUMNS, dtype=np.int64)
    for _ in range(10):
        computed.clear()
        run_step.py_func(state, times, kinds, group, out, marks)
    monkeypatch.undo()
    return len(computed)


@pytest.mark.parametrize(
    ("move", "changes"),
    [
        (0, {}),
        (100, {}),
        (900, {}),
        (100, {"rates": np.full((3, 3), RATE_ONE // 2, dtype=np.int64)}),
        (900, {"rates": np.full((3, 3), RATE_ONE // 2, dtype=np.int64)}),
        (100, {"join": True}),
        (900, {"join": True}),
        (100, {"on_demand": True}),
        (100, {"next_layer": True}),
        (100, {"correction": RATE_ONE // 4}),
        (100, {"inline": True}),
        (900, {"inline": True}),
        (300, {"inline": True, "rates": np.full((3, 3), RATE_ONE // 2, dtype=np.int64)}),
        (300, {"inline": True, "join": True, "next_layer": True}),
    ],
)
def test_cost_does_not_grow_with_equal_layers(
    monkeypatch: pytest.MonkeyPatch, move: int, changes: dict[str, Any]
) -> None:
    """In a settled run few layers of a step are computed, however many there are."""
    stages = {"qkv": 50, "attention": 100, "output_ffn": 150, "prediction": 60, "selection": 10}
    times = step_times(lm_head=70, draft=30, launch_per_step=5, **{**stages, **changes})
    for moves in ([move], [move, 0, move // 3]):
        counts = [layers_computed(monkeypatch, times, moves, n) for n in (16, 64, 256)]
        assert max(counts) <= 8, (moves, counts)


def test_every_rank_waits_for_the_slowest_in_each_layer() -> None:
    """One rank late in layer 1, another in layer 3: the step waits twice, on no rank it would."""
    times = step_times(qkv=10, attention=10, output_ffn=10)
    late = [[0, 1_000, 0, 0], [0, 0, 0, 1_500]]
    still = [[0] * 4] * 2
    together = compiled([times, times], [late, still])[1]
    # Layer 1 moves from 50 to 1,050, layer 3 from 110 to 1,610; step 1 needs them at 160 and 220.
    assert (1_050 - 160) + (1_610 - (220 + 890)) == together[OUT_WAIT]
    alone = [compiled([times, times], [[moves], [[0] * 4]])[1][OUT_WAIT] for moves in late]
    assert [890, 1_610 - 220] == alone


@given(pipelines())
@settings(max_examples=200, deadline=None)
def test_longest_transfers_of_one_rank_are_a_bound(case: Case) -> None:
    """One rank that moves what the longest of each layer is, is never faster."""
    steps, transfers = case
    even = np.full((3, 3), RATE_ONE, dtype=np.int64)
    undisturbed = [s._replace(rates=even, own=AS_LINEAR) for s in steps]
    longest = [np.max(moves, axis=0).tolist() for moves in transfers]
    exact, bound = compiled(undisturbed, transfers), compiled(undisturbed, longest)
    assert all(a[OUT_END] <= b[OUT_END] for a, b in zip(exact, bound, strict=True))
