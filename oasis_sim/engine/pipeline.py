"""The decode step as a compiled recurrence over layers, streams and links.

Four streams as in the paper (section 2 of arXiv 2608.08097): the foreground runs QKV, attention,
output and FFN of every layer, then the LM head and the draft model; prediction, selection and
transfer of a layer follow its QKV in the background. Attention of layer l at step t+1 waits for
the transfer of layer l issued at step t. All times are integer picoseconds.

Stages that run side by side slow each other down. The foreground and the prediction progress at
a rate of 1 / slowdown while a neighbour is busy; neighbours' intervals are known when a stage is
computed, because every stream is first-in first-out. Rates are fixed-point numbers with
`RATE_BITS` fraction bits, so that the recurrence and the event-driven twin (`pipeline_events`)
give the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled

RATE_BITS = 20
RATE_ONE = 1 << RATE_BITS
FAR_PS = 1 << 62

# Rows of the interval rings, and columns of the rate table.
TRANSFER, PREDICTION, SELECTION = 0, 1, 2
# Rows of the rate table: whose progress it is.
LINEAR, ATTENTION, BACKGROUND = 0, 1, 2

# Columns of `PipelineState.scalars`.
NOW, PREDICTION_FREE, SELECTION_FREE, TRANSFER_FREE, D2H_FREE, D2H_STEP_END = range(6)

# Columns of a step's result (see `run_step`).
(
    OUT_START,
    OUT_END,
    OUT_QKV,
    OUT_ATTENTION,
    OUT_FFN,
    OUT_LM_HEAD,
    OUT_DRAFT,
    OUT_PREDICTION,
    OUT_SELECTION,
    OUT_TRANSFER,
    OUT_LAUNCH,
    OUT_PREFILL,
    OUT_WAIT,
) = range(13)
OUT_COLUMNS = 13
# Where the six per-layer stages of `marks` stand in a step's result, from OUT_QKV on.
LAYER_STAGES = (0, 1, 2, 5, 6, 7)

Int64 = npt.NDArray[np.int64]


class PipelineState(NamedTuple):
    """Carry the streams from one step to the next.

    `scalars` int64[6]: clock and the time at which each stream and the device-to-host link are
    free. `transfer_end` int64[L]: end of the transfer that attention of layer l waits for.
    `ring` int64[3, R, 2]: the last R busy intervals of transfer, prediction and selection;
    `cursor` int64[3, 2]: intervals written so far, and the oldest that may still matter.
    """

    scalars: Int64
    transfer_end: Int64
    ring: Int64
    cursor: Int64


class StepTimes(NamedTuple):
    """Give the durations of one step, in picoseconds; every layer is alike but for its transfer.

    `rates` int64[3, 3]: fixed-point progress of linear layers, attention and prediction while
    transfer, prediction or selection is busy.
    `on_demand` puts prediction, selection and transfer of a layer between its QKV and attention.
    With `next_layer` a layer's transfer is for the layer after it, in the same step. `correction`
    is the fixed-point share of a layer's transfer that its own attention waits for.
    With `join` a step ends when all its streams have (one CUDA graph per step); without, its
    transfers may reach into the next step.
    """

    prefill: int
    qkv: int
    attention: int
    output_ffn: int
    lm_head: int
    draft: int
    prediction: int
    selection: int
    launch_per_layer: int
    launch_per_step: int
    d2h: int
    on_demand: bool
    rates: Int64
    join: bool
    next_layer: bool = False
    correction: int = 0


def new_state(layers: int, start_ps: int = 0) -> PipelineState:
    """Return idle streams at `start_ps` for a model of `layers` layers."""
    ring = np.full((3, 4 * layers + 8, 2), -1, dtype=np.int64)
    return PipelineState(
        scalars=np.full(6, start_ps, dtype=np.int64),
        transfer_end=np.full(layers, start_ps, dtype=np.int64),
        ring=ring,
        cursor=np.zeros((3, 2), dtype=np.int64),
    )


@compiled
def _push(ring: Int64, cursor: Int64, stream: int, start: int, end: int) -> None:
    """Note that a stream is busy from start to end."""
    if end > start:
        slot = cursor[stream, 0] % ring.shape[1]
        ring[stream, slot, 0] = start
        ring[stream, slot, 1] = end
        cursor[stream, 0] += 1


@compiled
def _forget(ring: Int64, cursor: Int64, now: int) -> None:
    """Pass over the intervals that ended before the foreground's clock."""
    for s in range(3):
        first = max(cursor[s, 1], cursor[s, 0] - ring.shape[1])
        while first < cursor[s, 0] and ring[s, first % ring.shape[1], 1] <= now:
            first += 1
        cursor[s, 1] = first


@compiled
def _rate(now: int, rates: Int64, ring: Int64, cursor: Int64, found: Int64) -> None:
    """Set found to the progress rate at `now` and the time of the next change of any stream."""
    rate = RATE_ONE
    change = FAR_PS
    for s in range(3):
        i = cursor[s, 1]
        while i < cursor[s, 0] and ring[s, i % ring.shape[1], 1] <= now:
            i += 1
        if i < cursor[s, 0]:
            begin = ring[s, i % ring.shape[1], 0]
            if begin <= now:
                rate = (rate * rates[s]) >> RATE_BITS
                change = min(change, ring[s, i % ring.shape[1], 1])
            else:
                change = min(change, begin)
    found[0] = rate
    found[1] = change


@compiled
def _finish(start: int, work: int, rates: Int64, ring: Int64, cursor: Int64) -> int:
    """Return when `work` picoseconds begun at `start` are done beside the busy neighbours."""
    now = start
    left = work
    found = np.empty(2, dtype=np.int64)
    while left > 0:
        _rate(now, rates, ring, cursor, found)
        rate, change = found[0], found[1]
        if rate > 0:
            needed = ((left << RATE_BITS) + rate - 1) // rate
            if now + needed <= change:
                now += needed
                break
        left -= ((change - now) * rate) >> RATE_BITS
        now = change
    return now


@compiled
def _run_layer(
    state: PipelineState, times: StepTimes, layer: int, transfer: Int64, now: int, mark: Int64
) -> int:
    """Run one layer from `now`; fill `mark` int64[12] and return the end of its foreground."""
    scalars, transfer_end, ring, cursor = state
    to = (layer + 1) % transfer.shape[0] if times.next_layer else layer
    move = transfer[to]
    _forget(ring, cursor, now)
    mark[0] = now
    mark[1] = _finish(now, times.qkv, times.rates[LINEAR], ring, cursor)
    mark[6] = max(mark[1], scalars[PREDICTION_FREE])
    mark[7] = _finish(mark[6], times.prediction, times.rates[BACKGROUND], ring, cursor)
    mark[8] = max(mark[7], scalars[SELECTION_FREE])
    mark[9] = mark[8] + times.selection
    mark[10] = max(mark[9], scalars[TRANSFER_FREE])
    ready = transfer_end[layer]
    if times.on_demand:
        ready = mark[10] + move
    else:
        _push(ring, cursor, PREDICTION, mark[6], mark[7])
        _push(ring, cursor, SELECTION, mark[8], mark[9])
    if times.correction > 0:
        part = (move * times.correction) >> RATE_BITS
        move -= part
        mark[10] += part
        scalars[TRANSFER_FREE] = mark[10]
        ready = max(ready, mark[10])
    if times.next_layer:
        _push(ring, cursor, TRANSFER, mark[10], mark[10] + move)
    mark[2] = max(mark[1], ready)
    mark[3] = _finish(mark[2], times.attention, times.rates[ATTENTION], ring, cursor)
    if move > 0 and not times.on_demand and not times.next_layer:
        # A gather may overwrite a slot only after this step's attention has read it.
        mark[10] = max(mark[10], mark[3])
        _push(ring, cursor, TRANSFER, mark[10], mark[10] + move)
    mark[11] = mark[10] + move
    if move > 0:
        scalars[TRANSFER_FREE] = mark[11]
    transfer_end[to] = mark[11]
    scalars[PREDICTION_FREE] = mark[7]
    scalars[SELECTION_FREE] = mark[9]
    mark[4] = mark[3]
    end: int = _finish(mark[4], times.output_ffn, times.rates[LINEAR], ring, cursor)
    mark[5] = end
    return end


@compiled
def run_step(
    state: PipelineState, times: StepTimes, transfer: Int64, out: Int64, marks: Int64
) -> None:
    """Advance the streams by one step.

    `transfer` int64[L] is the duration of each layer's transfer (0: nothing moves). `out`
    int64[13] receives start, end and the busy time of every stage. `marks` int64[L, 12] receives
    the start and end of the six per-layer stages: qkv, attention, output_ffn, prediction,
    selection, transfer.
    """
    scalars, transfer_end, ring, cursor = state
    linear = times.rates[LINEAR]
    for column in range(OUT_COLUMNS):
        out[column] = 0
    now = scalars[NOW]
    out[OUT_START] = now
    _forget(ring, cursor, now)
    done = _finish(now, times.prefill, linear, ring, cursor)
    out[OUT_PREFILL] = done - now
    now = done
    for layer in range(transfer.shape[0]):
        mark = marks[layer]
        now += times.launch_per_layer
        now = _run_layer(state, times, layer, transfer, now, mark)
        for stage in range(6):
            out[OUT_QKV + LAYER_STAGES[stage]] += mark[2 * stage + 1] - mark[2 * stage]
        out[OUT_WAIT] += mark[2] - mark[1]
        out[OUT_TRANSFER] += (transfer[layer] * times.correction) >> RATE_BITS
    out[OUT_LAUNCH] = times.launch_per_layer * transfer.shape[0] + times.launch_per_step
    _forget(ring, cursor, now)
    done = _finish(now, times.lm_head, linear, ring, cursor)
    out[OUT_LM_HEAD] = done - now
    now = _finish(done, times.draft, linear, ring, cursor)
    out[OUT_DRAFT] = now - done
    if times.join:
        last = 0 if times.next_layer else transfer.shape[0] - 1
        joined = max(now, transfer_end[last])
        out[OUT_WAIT] += joined - now
        now = joined
    # New KV of the step before must be in host memory before its blocks can be evicted.
    now = max(now + times.launch_per_step, scalars[D2H_STEP_END])
    scalars[D2H_FREE] = max(scalars[D2H_FREE], now) + times.d2h
    scalars[D2H_STEP_END] = scalars[D2H_FREE] if times.d2h > 0 else 0
    scalars[NOW] = now
    out[OUT_END] = now
