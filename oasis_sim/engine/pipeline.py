"""The decode step as a compiled recurrence over layers, streams and links.

Four streams as in the paper (section 2 of arXiv 2608.08097): the foreground runs QKV, attention,
output and FFN of every layer, then the LM head and the draft model; prediction, selection and
transfer of a layer follow its QKV in the background. Attention of layer l at step t+1 waits for
the transfer of layer l issued at step t. All times are integer picoseconds.

Stages that run side by side slow each other down (`streams`). Layers that begin like the one
before them, with the same transfer, also go on like it: they are not computed but shifted, so that
the cost of a step grows with the number of different layers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled
from oasis_sim.engine.drain import drain
from oasis_sim.engine.layer import run_layer
from oasis_sim.engine.state import (
    D2H_FREE,
    D2H_STEP_END,
    LAYER_STAGES,
    NOW,
    OUT_COLUMNS,
    OUT_DRAFT,
    OUT_END,
    OUT_LAUNCH,
    OUT_LM_HEAD,
    OUT_PREFILL,
    OUT_QKV,
    OUT_START,
    OUT_TRANSFER,
    OUT_WAIT,
    PREDICTION_FREE,
    SELECTION_FREE,
    TRANSFER_FREE,
    PipelineState,
    StepTimes,
)
from oasis_sim.engine.streams import (
    LINEAR,
    LOOK,
    PREDICTION,
    RATE_BITS,
    SELECTION,
    TRANSFER,
    alike,
    finish_linear,
    forget,
    look,
    shift,
)

MOST_LAYERS = 1 << 20

Int64 = npt.NDArray[np.int64]


@compiled
def _backlog(times: StepTimes, behind: int, mark: Int64) -> int:
    """Return for how long the link is busy beyond all that a layer does; -1 if it is not.

    Such a layer does not see when its own transfer runs: it only appends it. `behind` is how
    long the link is busy after the layer's start, `mark` what the layer did.
    """
    if times.on_demand or times.next_layer or times.correction > 0:
        return -1
    left: int = behind - (max(mark[5], mark[7], mark[9]) - mark[0])
    return max(left, -1)


@compiled
def _transfer_pace(
    times: StepTimes, move: int, before: Int64, after: Int64, mark: Int64
) -> tuple[int, int]:
    """Return by how much later the transfer of each following layer ends, and for how many.

    That is the layer's period when the streams stand as they did a period ago, and the length
    of a transfer while the link is behind. (0, 0): the next layer goes on in its own way.
    """
    period = mark[5] + times.launch_per_layer - mark[0]
    if not alike(before[PREDICTION], after[PREDICTION]):
        return 0, 0
    if not alike(before[SELECTION], after[SELECTION]):
        return 0, 0
    if alike(before[TRANSFER], after[TRANSFER]):
        return period, MOST_LAYERS
    left = _backlog(times, before[TRANSFER, 1], mark)
    if left < 0:
        return 0, 0
    return move, MOST_LAYERS if move >= period else left // (period - move)


@compiled
def _count(
    state: PipelineState,
    times: StepTimes,
    layer: int,
    most: int,
    group: Int64,
    awaited: int,
    mark: Int64,
) -> int:
    """Count the layers after `layer`, up to `most`, with its transfer and as long a wait.

    `awaited` is the transfer end that `layer` waited for, `mark` what it did.
    """
    layers = group.shape[0]
    ahead = 1 if times.next_layer else 0
    period = mark[5] + times.launch_per_layer - mark[0]
    late = max(awaited - mark[1], 0)
    count = 0
    for other in range(layer + 1, min(layers, layer + 1 + most)):
        if group[(other + ahead) % layers] != group[(layer + ahead) % layers]:
            break
        # One layer ahead, only the first of them waits for what is known already.
        waits = not times.on_demand and (count == 0 or not times.next_layer)
        if waits and late != max(state.transfer_end[other] - mark[1] - (count + 1) * period, 0):
            break
        count += 1
    return count


@compiled
def _pass_over(
    state: PipelineState, times: StepTimes, layer: int, count: int, pace: int, marks: Int64
) -> None:
    """Let `count` layers go on like `layer`, each a period later than the one before it.

    Their transfers are later by `pace`.
    """
    scalars, transfer_end, ring, cursor = state
    layers = marks.shape[0]
    ahead = 1 if times.next_layer else 0
    period = marks[layer, 5] + times.launch_per_layer - marks[layer, 0]
    for other in range(layer + 1, layer + 1 + count):
        for column in range(10):
            marks[other, column] = marks[other - 1, column] + period
        marks[other, 10] = marks[other - 1, 10] + pace
        marks[other, 11] = marks[other - 1, 11] + pace
        transfer_end[(other + ahead) % layers] = marks[other, 11]
    later = count * period
    scalars[PREDICTION_FREE] += later
    scalars[SELECTION_FREE] += later
    scalars[TRANSFER_FREE] += count * pace
    shift(ring[PREDICTION], cursor[PREDICTION], later, later)
    shift(ring[SELECTION], cursor[SELECTION], later, later)
    # While the link is behind, it is busy all the time from before the layer on.
    shift(ring[TRANSFER], cursor[TRANSFER], later, count * pace)


@compiled
def _run_layers(
    state: PipelineState,
    times: StepTimes,
    transfer: Int64,
    group: Int64,
    now: int,
    out: Int64,
    marks: Int64,
) -> int:
    """Run all layers from `now`; return the end of the last."""
    scalars, transfer_end, ring, cursor = state
    free = scalars[TRANSFER_FREE : TRANSFER_FREE + 3]
    layers = group.shape[0]
    before, after = np.empty((3, LOOK), dtype=np.int64), np.empty((3, LOOK), dtype=np.int64)
    passed = 0
    for layer in range(layers):
        if layer < passed:
            continue
        now += times.launch_per_layer
        to = (layer + 1) % layers if times.next_layer else layer
        move = transfer[group[to]]
        mark = marks[layer]
        awaited = transfer_end[layer]
        same = layer + 1 < layers and group[(to + 1) % layers] == group[to]
        same = same and look(ring, cursor, free, now, before)
        now = run_layer(state, times, layer, to, move, now, mark)
        count = 0
        if same and look(ring, cursor, free, now + times.launch_per_layer, after):
            pace, most = _transfer_pace(times, move, before, after, mark)
            count = _count(state, times, layer, most, group, awaited, mark)
            _pass_over(state, times, layer, count, pace, marks)
            now = marks[layer + count, 5]
        for stage in range(6):
            busy = mark[2 * stage + 1] - mark[2 * stage]
            out[OUT_QKV + LAYER_STAGES[stage]] += (1 + count) * busy
        out[OUT_WAIT] += (1 + count) * (mark[2] - mark[1])
        out[OUT_TRANSFER] += (1 + count) * ((move * times.correction) >> RATE_BITS)
        passed = layer + 1 + count
    return now


@compiled
def run_step(
    state: PipelineState,
    times: StepTimes,
    transfer: Int64,
    group: Int64,
    out: Int64,
    marks: Int64,
) -> None:
    """Advance the streams by one step.

    `transfer` int64[G] is the duration of the transfer of each group of equal layers (0: nothing
    moves), `group` int64[L] the group of each layer. `out` int64[13] receives start, end and the
    busy time of every stage. `marks` int64[L, 12] receives the start and end of the six per-layer
    stages: qkv, attention, output_ffn, prediction, selection, transfer.
    """
    scalars, _, ring, cursor = state
    linear = times.rates[LINEAR]
    layers = group.shape[0]
    for column in range(OUT_COLUMNS):
        out[column] = 0
    now = scalars[NOW]
    out[OUT_START] = now
    forget(ring, cursor, now)
    done = finish_linear(now, times.prefill, linear, times.covered, ring, cursor)
    out[OUT_PREFILL] = done - now
    now = _run_layers(state, times, transfer, group, done, out, marks)
    out[OUT_LAUNCH] = times.launch_per_layer * layers + times.launch_per_step
    forget(ring, cursor, now)
    done = finish_linear(now, times.lm_head, linear, times.covered, ring, cursor)
    out[OUT_LM_HEAD] = done - now
    now = finish_linear(done, times.draft, linear, times.covered, ring, cursor)
    out[OUT_DRAFT] = now - done
    if times.join:
        joined = drain(state, times, now, out, marks)
        out[OUT_WAIT] += joined - now
        now = joined
    # New KV of the step before must be in host memory before its blocks can be evicted.
    now = max(now + times.launch_per_step, scalars[D2H_STEP_END])
    scalars[D2H_FREE] = max(scalars[D2H_FREE], now) + times.d2h
    scalars[D2H_STEP_END] = scalars[D2H_FREE] if times.d2h > 0 else 0
    scalars[NOW] = now
    out[OUT_END] = now
