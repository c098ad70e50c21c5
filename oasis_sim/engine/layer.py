"""One layer of a decode step: its six stages on four streams."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled
from oasis_sim.engine.state import (
    PREDICTION_FREE,
    SELECTION_FREE,
    TRANSFER_FREE,
    PipelineState,
    StepTimes,
)
from oasis_sim.engine.streams import (
    ATTENTION,
    BACKGROUND,
    LINEAR,
    PREDICTION,
    RATE_BITS,
    SELECTION,
    TRANSFER,
    finish,
    finish_linear,
    forget,
    push,
)

Int64 = npt.NDArray[np.int64]


@compiled
def run_layer(
    state: PipelineState,
    times: StepTimes,
    layer: int,
    to: int,
    move: int,
    now: int,
    mark: Int64,
) -> int:
    """Run one layer from `now`, with a transfer of `move` picoseconds for the layer `to`.

    Fill `mark` int64[12] and return the end of the layer's foreground.
    """
    scalars, transfer_end, ring, cursor = state
    forget(ring, cursor, now)
    mark[0] = now
    linear = times.rates[LINEAR]
    mark[1] = finish_linear(now, times.qkv, linear, times.covered, ring, cursor)
    mark[6] = max(mark[1], scalars[PREDICTION_FREE])
    mark[7] = finish(mark[6], times.prediction, times.rates[BACKGROUND], ring, cursor)
    mark[8] = max(mark[7], scalars[SELECTION_FREE])
    mark[9] = mark[8] + times.selection
    mark[10] = max(mark[9], scalars[TRANSFER_FREE])
    ready = transfer_end[layer]
    if times.on_demand:
        ready = mark[10] + move
    else:
        push(ring[PREDICTION], cursor[PREDICTION], mark[6], mark[7])
        push(ring[SELECTION], cursor[SELECTION], mark[8], mark[9])
    if times.correction > 0:
        part = (move * times.correction) >> RATE_BITS
        move -= part
        mark[10] += part
        scalars[TRANSFER_FREE] = mark[10]
        ready = max(ready, mark[10])
    if times.next_layer:
        push(ring[TRANSFER], cursor[TRANSFER], mark[10], mark[10] + move)
    mark[2] = max(mark[1], ready)
    mark[3] = finish(mark[2], times.attention, times.rates[ATTENTION], ring, cursor)
    if move > 0 and not times.on_demand and not times.next_layer:
        # A gather may overwrite a slot only after this step's attention has read it.
        mark[10] = max(mark[10], mark[3])
        push(ring[TRANSFER], cursor[TRANSFER], mark[10], mark[10] + move)
    mark[11] = mark[10] + move
    if move > 0:
        scalars[TRANSFER_FREE] = mark[11]
    transfer_end[to] = mark[11]
    scalars[PREDICTION_FREE] = mark[7]
    scalars[SELECTION_FREE] = mark[9]
    mark[4] = mark[3]
    end: int = finish_linear(mark[4], times.output_ffn, linear, times.covered, ring, cursor)
    mark[5] = end
    return end
