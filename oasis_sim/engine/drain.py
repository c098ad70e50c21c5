"""The end of a step whose streams are joined: transfers that outlast its other work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import uncounted
from oasis_sim.engine.state import PipelineState, StepTimes
from oasis_sim.engine.streams import RATE_BITS, RATE_ONE, STREAMS, TRANSFER

Int64 = npt.NDArray[np.int64]


@uncounted
def scaled(length: int, share: int) -> int:
    """Return the fixed-point `share` of a time, rounded down; the product may pass 64 bits."""
    whole, rest = length >> RATE_BITS, length & (RATE_ONE - 1)
    return whole * share + ((rest * share) >> RATE_BITS)


@uncounted
def drain(
    state: PipelineState, times: StepTimes, rank: int, now: int, busy: Int64, marks: Int64
) -> int:
    """Let what is left of a rank's transfers run alone from `now` on; return when the last ends.

    `busy` int64[3 R] counts the busy time of each lane. What they do to a prediction that outlasts
    the foreground too is not computed again.
    """
    _, free, transfer_end, ring, cursor = state
    layers, lane = marks.shape[1], STREAMS * rank + TRANSFER
    ahead = 1 if times.next_layer else 0
    last = now
    for layer in range(layers):
        mark = marks[rank, layer]
        start, end = mark[10], mark[11]
        if end <= now:
            continue
        if start < now:
            last = now + scaled(end - now, times.idle)
        else:
            mark[10] = max(mark[9], last)
            last = mark[10] + scaled(end - start, times.idle)
        mark[11] = last
        transfer_end[rank, (layer + ahead) % layers] = last
        busy[lane] += last - mark[10] - (end - start)
    free[lane] = min(free[lane], last)
    for i in range(cursor[lane, 1], cursor[lane, 0]):
        for side in range(2):
            at = i & (ring.shape[1] - 1)
            ring[lane, at, side] = min(ring[lane, at, side], last)
    return last
