"""The end of a step whose streams are joined: transfers that outlast its other work."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled
from oasis_sim.engine.state import OUT_TRANSFER, TRANSFER_FREE, PipelineState, StepTimes
from oasis_sim.engine.streams import RATE_BITS, RATE_ONE, TRANSFER

Int64 = npt.NDArray[np.int64]


@compiled
def scaled(length: int, share: int) -> int:
    """Return the fixed-point `share` of a time, rounded down; the product may pass 64 bits."""
    whole, rest = length >> RATE_BITS, length & (RATE_ONE - 1)
    return whole * share + ((rest * share) >> RATE_BITS)


@compiled
def drain(state: PipelineState, times: StepTimes, now: int, out: Int64, marks: Int64) -> int:
    """Let what is left of the transfers run alone from `now` on; return when the last has ended.

    What they do to a prediction that outlasts the foreground too is not computed again.
    """
    scalars, transfer_end, ring, cursor = state
    layers = marks.shape[0]
    ahead = 1 if times.next_layer else 0
    last = now
    for layer in range(layers):
        start, end = marks[layer, 10], marks[layer, 11]
        if end <= now:
            continue
        if start < now:
            last = now + scaled(end - now, times.idle)
        else:
            marks[layer, 10] = max(marks[layer, 9], last)
            last = marks[layer, 10] + scaled(end - start, times.idle)
        marks[layer, 11] = last
        transfer_end[(layer + ahead) % layers] = last
        out[OUT_TRANSFER] += last - marks[layer, 10] - (end - start)
    scalars[TRANSFER_FREE] = min(scalars[TRANSFER_FREE], last)
    for i in range(cursor[TRANSFER, 1], cursor[TRANSFER, 0]):
        for side in range(2):
            at = i % ring.shape[1]
            ring[TRANSFER, at, side] = min(ring[TRANSFER, at, side], last)
    return last
