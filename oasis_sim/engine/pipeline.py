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

import numba
import numpy as np
import numpy.typing as npt

RATE_BITS = 20
RATE_ONE = 1 << RATE_BITS

# Rows of the interval rings and of the rate table.
TRANSFER, PREDICTION, SELECTION = 0, 1, 2
LINEAR, ATTENTION = 0, 1

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

    `rates` int64[2, 3]: fixed-point progress of linear layers and attention while transfer,
    prediction or selection is busy; `prediction_rate` the same for prediction beside transfer.
    `on_demand` puts prediction, selection and transfer of a layer between its QKV and attention.
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
    prediction_rate: int


def new_state(layers: int, start_ps: int = 0) -> PipelineState:
    """Return idle streams at `start_ps` for a model of `layers` layers."""
    ring = np.full((3, 4 * layers + 8, 2), -1, dtype=np.int64)
    return PipelineState(
        scalars=np.full(6, start_ps, dtype=np.int64),
        transfer_end=np.full(layers, start_ps, dtype=np.int64),
        ring=ring,
        cursor=np.zeros((3, 2), dtype=np.int64),
    )


@numba.njit(cache=True)
def _push(ring: Int64, cursor: Int64, stream: int, start: int, end: int) -> None:
    if end > start:
        slot = cursor[stream, 0] % ring.shape[1]
        ring[stream, slot, 0] = start
        ring[stream, slot, 1] = end
        cursor[stream, 0] += 1


@numba.njit(cache=True)
def _finish(
    start: int, work: int, rates: Int64, only_transfer: bool, ring: Int64, cursor: Int64
) -> int:
    """Return when `work` picoseconds begun at `start` are done beside the busy neighbours."""
    now = start
    left = work
    streams = 1 if only_transfer else 3
    index = np.empty(3, dtype=np.int64)
    for s in range(streams):
        first = max(cursor[s, 1], cursor[s, 0] - ring.shape[1])
        while first < cursor[s, 0] and ring[s, first % ring.shape[1], 1] <= start:
            first += 1
        if not only_transfer:
            cursor[s, 1] = first
        index[s] = first
    while left > 0:
        rate = RATE_ONE
        change = np.int64(1) << 62
        for s in range(streams):
            i = index[s]
            while i < cursor[s, 0] and ring[s, i % ring.shape[1], 1] <= now:
                i += 1
            index[s] = i
            if i < cursor[s, 0]:
                begin = ring[s, i % ring.shape[1], 0]
                if begin <= now:
                    rate = (rate * rates[s]) >> RATE_BITS
                    change = min(change, ring[s, i % ring.shape[1], 1])
                else:
                    change = min(change, begin)
        if rate > 0:
            needed = ((left << RATE_BITS) + rate - 1) // rate
            if now + needed <= change:
                return now + needed
        left -= ((change - now) * rate) >> RATE_BITS
        now = change
    return now


@numba.njit(cache=True)
def run_step(
    state: PipelineState, times: StepTimes, transfer: Int64, out: Int64, marks: Int64
) -> None:
    """Advance the streams by one step.

    `transfer` int64[L] is the duration of each layer's transfer (0: nothing moves). `out`
    int64[13] receives start, end and the busy time of every stage. `marks` is int64[L, 12] to
    receive the start and end of the six per-layer stages (qkv, attention, output_ffn, prediction,
    selection, transfer), or of shape [0, 12] when nobody asks.
    """
    scalars, transfer_end, ring, cursor = state
    layers = transfer.shape[0]
    linear = times.rates[LINEAR]
    attention = times.rates[ATTENTION]
    beside_transfer = np.empty(3, dtype=np.int64)
    beside_transfer[TRANSFER] = times.prediction_rate
    record = marks.shape[0] == layers
    out[:] = 0
    now = scalars[NOW]
    out[OUT_START] = now
    if times.prefill > 0:
        done = _finish(now, times.prefill, linear, False, ring, cursor)
        out[OUT_PREFILL] = done - now
        now = done
    for layer in range(layers):
        now += times.launch_per_layer
        out[OUT_LAUNCH] += times.launch_per_layer
        qkv_start = now
        qkv_end = _finish(qkv_start, times.qkv, linear, False, ring, cursor)
        predict_start = max(qkv_end, scalars[PREDICTION_FREE])
        predict_end = _finish(
            predict_start, times.prediction, beside_transfer, True, ring, cursor
        )
        select_start = max(predict_end, scalars[SELECTION_FREE])
        select_end = select_start + times.selection
        ready = transfer_end[layer]
        if times.on_demand:
            ready = max(select_end, scalars[TRANSFER_FREE]) + transfer[layer]
        else:
            _push(ring, cursor, PREDICTION, predict_start, predict_end)
            _push(ring, cursor, SELECTION, select_start, select_end)
        attention_start = max(qkv_end, ready)
        attention_end = _finish(
            attention_start, times.attention, attention, False, ring, cursor
        )
        if times.on_demand:
            move_start = ready - transfer[layer]
        else:
            # A gather may overwrite a slot only after this step's attention has read it.
            move_start = max(select_end, scalars[TRANSFER_FREE])
            if transfer[layer] > 0:
                move_start = max(move_start, attention_end)
        move_end = move_start + transfer[layer]
        if transfer[layer] > 0:
            scalars[TRANSFER_FREE] = move_end
            if not times.on_demand:
                _push(ring, cursor, TRANSFER, move_start, move_end)
        transfer_end[layer] = move_end
        scalars[PREDICTION_FREE] = predict_end
        scalars[SELECTION_FREE] = select_end
        ffn_end = _finish(attention_end, times.output_ffn, linear, False, ring, cursor)
        out[OUT_QKV] += qkv_end - qkv_start
        out[OUT_ATTENTION] += attention_end - attention_start
        out[OUT_FFN] += ffn_end - attention_end
        out[OUT_PREDICTION] += predict_end - predict_start
        out[OUT_SELECTION] += times.selection
        out[OUT_TRANSFER] += transfer[layer]
        out[OUT_WAIT] += attention_start - qkv_end
        if record:
            row = marks[layer]
            row[0], row[1] = qkv_start, qkv_end
            row[2], row[3] = attention_start, attention_end
            row[4], row[5] = attention_end, ffn_end
            row[6], row[7] = predict_start, predict_end
            row[8], row[9] = select_start, select_end
            row[10], row[11] = move_start, move_end
        now = ffn_end
    lm_end = _finish(now, times.lm_head, linear, False, ring, cursor)
    draft_end = _finish(lm_end, times.draft, linear, False, ring, cursor)
    out[OUT_LM_HEAD] = lm_end - now
    out[OUT_DRAFT] = draft_end - lm_end
    out[OUT_LAUNCH] += times.launch_per_step
    # New KV of the step before must be in host memory before its blocks can be evicted.
    now = max(draft_end + times.launch_per_step, scalars[D2H_STEP_END])
    scalars[D2H_FREE] = max(scalars[D2H_FREE], now) + times.d2h
    scalars[D2H_STEP_END] = scalars[D2H_FREE] if times.d2h > 0 else 0
    scalars[NOW] = now
    out[OUT_END] = now
