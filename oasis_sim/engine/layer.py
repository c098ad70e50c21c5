"""One layer of a decode step: its six stages on four streams of every rank.

Under tensor parallelism each rank (GPU) fetches for its own KV heads. Two collectives per layer
join the ranks, one behind attention and one at the layer's end: what follows begins on all of them
when the slowest is there. Stages of ranks differ by their transfers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import uncounted
from oasis_sim.engine.state import QKV, PipelineState, StepTimes
from oasis_sim.engine.streams import (
    ATTENTION,
    BACKGROUND,
    LINEAR,
    PREDICTION,
    RATE_BITS,
    SELECTION,
    STREAMS,
    TRANSFER,
    finish,
    finish_linear,
    forget,
    push,
)

Int64 = npt.NDArray[np.int64]


@uncounted
def run_linear(state: PipelineState, times: StepTimes, start: int, work: int) -> int:
    """Return when every rank is done with linear layers that all of them begin at `start`."""
    if work <= 0:
        return start
    _, free, _, ring, cursor = state
    end = start
    for base in range(0, free.shape[0], STREAMS):
        forget(ring, cursor, base, start)
        done = finish_linear(start, work, times.rates[LINEAR], times.covered, ring, cursor, base)
        end = max(end, done)
    return end


@uncounted
def _finish_own(
    times: StepTimes, row: int, start: int, work: int, ring: Int64, cursor: Int64, base: int
) -> int:
    """Return when a rank is done with what may have progress of its own, a row of `own`."""
    rates = times.own[row]
    if rates[TRANSFER] < 0:
        rates = times.rates[LINEAR]
        as_all: int = finish_linear(start, work, rates, times.covered, ring, cursor, base)
        return as_all
    done: int = finish(start, work, rates, ring, cursor, base, TRANSFER)
    return done


@uncounted
def run_own(state: PipelineState, times: StepTimes, start: int, work: int, row: int) -> int:
    """Return when every rank is done with the LM head or the draft model, a row of `own`."""
    if work <= 0:
        return start
    _, free, _, ring, cursor = state
    end = start
    for base in range(0, free.shape[0], STREAMS):
        forget(ring, cursor, base, start)
        end = max(end, _finish_own(times, row, start, work, ring, cursor, base))
    return end


@uncounted
def asked(times: StepTimes, mark: Int64) -> int:
    """Return when attention of a layer could begin if it waited for nothing."""
    end: int = mark[7] if times.inline else mark[1]
    return end


@uncounted
def _to_attention(
    state: PipelineState, times: StepTimes, rank: int, layer: int, to: int, move: int, mark: Int64
) -> int:
    """Run one rank's part of a layer from `mark[0]`, with a transfer of `move` picoseconds.

    The transfer is for the layer `to`. Fill `mark` int64[MARKS] but for output and FFN; return
    the end of attention.
    """
    _, free, transfer_end, ring, cursor = state
    base = STREAMS * rank
    transfer, prediction, selection = base + TRANSFER, base + PREDICTION, base + SELECTION
    now = mark[0]
    forget(ring, cursor, base, now)
    mark[1] = _finish_own(times, QKV, now, times.qkv, ring, cursor, base)
    mark[6] = max(mark[1], free[prediction])
    mark[7] = finish(
        mark[6], times.prediction, times.rates[BACKGROUND], ring, cursor, base, TRANSFER
    )
    mark[8] = max(mark[7], free[selection])
    mark[9] = mark[8] + times.selection
    mark[10] = max(mark[9], free[transfer])
    ready = transfer_end[rank, layer]
    if times.on_demand:
        ready = mark[10] + move
    else:
        if not times.inline:
            push(ring, cursor, prediction, mark[6], mark[7])
        push(ring, cursor, selection, mark[8], mark[9])
    if times.correction > 0:
        part = (move * times.correction) >> RATE_BITS
        move -= part
        mark[10] += part
        free[transfer] = mark[10]
        ready = max(ready, mark[10])
    if times.next_layer:
        push(ring, cursor, transfer, mark[10], mark[10] + move)
    mark[2] = max(asked(times, mark), ready)
    mark[3] = finish(mark[2], times.attention, times.rates[ATTENTION], ring, cursor, base, TRANSFER)
    if move > 0 and not times.on_demand and not times.next_layer:
        # A gather may overwrite a slot only after this step's attention has read it.
        mark[10] = max(mark[10], mark[3])
        push(ring, cursor, transfer, mark[10], mark[10] + move)
    mark[11] = mark[10] + move
    if move > 0:
        free[transfer] = mark[11]
    transfer_end[rank, to] = mark[11]
    free[prediction] = mark[7]
    free[selection] = mark[9]
    end: int = mark[3]
    return end


@uncounted
def run_layer(
    state: PipelineState,
    times: StepTimes,
    layer: int,
    to: int,
    moves: Int64,
    now: int,
    marks: Int64,
) -> int:
    """Run one layer from `now`; `moves` int64[R] are each rank's transfers for the layer `to`.

    Fill the layer's row of `marks` int64[R, L, MARKS] and return the end of its foreground.
    """
    ranks = moves.shape[0]
    joined = now
    for rank in range(ranks):
        mark = marks[rank, layer]
        mark[0] = now
        joined = max(joined, _to_attention(state, times, rank, layer, to, moves[rank], mark))
    first = times.collective // 2
    end = run_linear(state, times, joined + first, times.output_ffn) + times.collective - first
    for rank in range(ranks):
        marks[rank, layer, 4] = joined
        marks[rank, layer, 5] = end
    return end
