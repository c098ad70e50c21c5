"""Layers that begin like the one before them: found, counted, and shifted instead of computed.

A layer follows from how the streams of every rank stand when it begins, and from its transfers.
Where both are those of the layer before, all of its times are the same ones, a period later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled, uncounted
from oasis_sim.engine.layer import asked
from oasis_sim.engine.state import PipelineState, StepTimes
from oasis_sim.engine.streams import (
    LOOK,
    PREDICTION,
    SELECTION,
    STREAMS,
    TRANSFER,
    alike,
    shift,
)

MOST_LAYERS = 1 << 20

Int64 = npt.NDArray[np.int64]


class Seen(NamedTuple):
    """Hold what was seen of two neighbouring layers, for each of R ranks.

    `awaited` int64[R]: end of the transfer that the first waited for. `before`, `after`
    int64[3 R, LOOK]: how the streams stood when each began (see `look`). `paces` int64[R]: by how
    much later the transfer of each following layer ends.
    """

    awaited: Int64
    before: Int64
    after: Int64
    paces: Int64


@compiled
def nothing_seen(ranks: int) -> Seen:
    """Return the record, not filled in."""
    return Seen(
        np.empty(ranks, dtype=np.int64),
        np.empty((STREAMS * ranks, LOOK), dtype=np.int64),
        np.empty((STREAMS * ranks, LOOK), dtype=np.int64),
        np.empty(ranks, dtype=np.int64),
    )


@uncounted
def _backlog(times: StepTimes, link: Int64, mark: Int64) -> int:
    """Return for how long a rank's link is busy beyond all that a layer does; -1 if it is not.

    Such a layer does not see when its own transfer runs: it only appends it. `link` int64[LOOK]
    is how the link stood at the layer's start (see `look`); a gap in what it has to do is seen by
    this layer and no other. `mark` is what the layer did.
    """
    if times.on_demand or times.next_layer or times.correction > 0:
        return -1
    count, behind, start, end = link[0], link[1], link[2], link[3]
    if count != 1 or start > 0 or end < behind:
        return -1
    left: int = behind - (max(mark[5], mark[7], mark[9]) - mark[0])
    return max(left, -1)


@uncounted
def _transfer_pace(
    times: StepTimes, move: int, seen: Seen, rank: int, mark: Int64
) -> tuple[int, int]:
    """Return by how much later a rank's transfer of each following layer ends, and for how many.

    That is the layer's period when the streams stand as they did a period ago, and the length
    of a transfer while the link is behind. (0, 0): the next layer goes on in its own way.
    """
    period = mark[5] + times.launch_per_layer - mark[0]
    _, before, after, _ = seen
    base = STREAMS * rank
    if not alike(before, after, base + PREDICTION):
        return 0, 0
    if not alike(before, after, base + SELECTION):
        return 0, 0
    if alike(before, after, base + TRANSFER):
        return period, MOST_LAYERS
    left = _backlog(times, before[base + TRANSFER], mark)
    if left < 0:
        return 0, 0
    return move, MOST_LAYERS if move >= period else left // (period - move)


@uncounted
def _as_late(
    state: PipelineState,
    times: StepTimes,
    other: int,
    seen: Seen,
    marks: Int64,
    layer: int,
    later: int,
) -> bool:
    """Say whether each rank waits at the layer `other`, which begins `later`, as at `layer`."""
    transfer_end = state.transfer_end
    for rank in range(transfer_end.shape[0]):
        ready = asked(times, marks[rank, layer])
        late = max(seen.awaited[rank] - ready, 0)
        if late != max(transfer_end[rank, other] - ready - later, 0):
            return False
    return True


@uncounted
def layers_alike(
    state: PipelineState,
    times: StepTimes,
    layer: int,
    group: Int64,
    moves: Int64,
    seen: Seen,
    marks: Int64,
) -> int:
    """Count the layers after `layer` with its transfers `moves` and as long waits on every rank.

    Fill in the paces of `seen`.
    """
    layers, most = group.shape[0], MOST_LAYERS
    for rank in range(moves.shape[0]):
        pace, few = _transfer_pace(times, moves[rank], seen, rank, marks[rank, layer])
        seen.paces[rank] = pace
        most = min(most, few)
    ahead = 1 if times.next_layer else 0
    period = marks[0, layer, 5] + times.launch_per_layer - marks[0, layer, 0]
    count = 0
    for other in range(layer + 1, min(layers, layer + 1 + most)):
        if group[(other + ahead) % layers] != group[(layer + ahead) % layers]:
            break
        # One layer ahead, only the first of them waits for what is known already.
        waits = not times.on_demand and (count == 0 or not times.next_layer)
        later = (count + 1) * period
        if waits and not _as_late(state, times, other, seen, marks, layer, later):
            break
        count += 1
    return count


@uncounted
def pass_over(
    state: PipelineState, times: StepTimes, layer: int, count: int, paces: Int64, marks: Int64
) -> None:
    """Let `count` layers go on like `layer`, each a period later than the one before it.

    Their transfers are later by `paces` int64[R].
    """
    _, free, transfer_end, ring, cursor = state
    layers = marks.shape[1]
    ahead = 1 if times.next_layer else 0
    period = marks[0, layer, 5] + times.launch_per_layer - marks[0, layer, 0]
    later = count * period
    for rank in range(marks.shape[0]):
        pace, mine, base = paces[rank], marks[rank], STREAMS * rank
        for other in range(layer + 1, layer + 1 + count):
            for column in range(10):
                mine[other, column] = mine[other - 1, column] + period
            mine[other, 10] = mine[other - 1, 10] + pace
            mine[other, 11] = mine[other - 1, 11] + pace
            transfer_end[rank, (other + ahead) % layers] = mine[other, 11]
        free[base + PREDICTION] += later
        free[base + SELECTION] += later
        free[base + TRANSFER] += count * pace
        shift(ring, cursor, base + PREDICTION, later, later)
        shift(ring, cursor, base + SELECTION, later, later)
        # While the link is behind, it is busy all the time from before the layer on.
        shift(ring, cursor, base + TRANSFER, later, count * pace)
