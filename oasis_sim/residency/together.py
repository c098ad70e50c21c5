"""The compiled core for rules that see other heads or the future: every step, head by head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled
from oasis_sim.residency.arrays import (
    Attended,
    Counts,
    Head,
    MoveArrays,
    Path,
    Sizes,
    Trace,
)
from oasis_sim.residency.core import (
    admit,
    candidates,
    record_start,
    report,
    sort_outside,
    write_moves,
)
from oasis_sim.residency.future import Future, foresee, look_ahead

Int64 = NDArray[np.int64]

# Columns of a head's edges: resident blocks inside the target, where those outside begin and end
# in their list, how many were resident before the step, and what the step needed and admitted.
INSIDE, BEGIN, END, RESIDENT, NEEDED, ADMITTED = range(6)
EDGES = 6


class Layer(NamedTuple):
    """Hold a layer's heads, whether they share their caps, and what is known of the future.

    The arrays of `group` are those of a head with the heads as first axis.
    """

    group: Head
    over_heads: bool
    future: Future


@compiled
def _head(group: Head, number: int) -> Head:
    """Return the state of one head of a layer's, whose arrays are rows of the group's."""
    return Head(
        group.slot_of[number],
        group.target_step[number],
        group.use_step[number],
        group.chosen[number],
        group.missing[number],
        group.inside[number],
        group.outside[number],
    )


@compiled
def _grant(group: Head, targets: Int64, depth: int, total: int, grants: Int64) -> None:
    """Spread `total` admissions over missing blocks: better ranks first, then lower heads."""
    for number in range(targets.shape[0]):
        grants[number] = 0
    for rank in range(min(depth, group.chosen.shape[1])):
        for number in range(targets.shape[0]):
            if rank >= targets[number] or total == 0:
                continue
            if group.slot_of[number, group.chosen[number, rank]] < 0:
                grants[number] += 1
                total -= 1


@compiled
def _aim(
    trace: Trace, path: Path, sizes: Sizes, head: Head, place: tuple[int, int, int], edge: Int64
) -> int:
    """Put the target of a step into `head.chosen` and return its size."""
    step, layer, number = place
    order = trace.target[path.target_row[step], layer, number]
    target: int = candidates(order, sizes, path.target_position[step], head.chosen)
    for index in range(target):
        head.target_step[head.chosen[index]] = step
    edge[RESIDENT] = edge[INSIDE] + edge[END] - edge[BEGIN]
    edge[END] = sort_outside(head, step, edge[INSIDE], edge[BEGIN], edge[END])
    return target


@compiled
def _settle(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    head: Head,
    place: tuple[int, int, int],
    edge: Int64,
) -> None:
    """Write what a head did in a step."""
    step, layer, number = place
    out = step - path.first
    counts.needed[out, layer, number] = edge[NEEDED]
    counts.admitted[out, layer, number] = edge[ADMITTED]
    held = edge[INSIDE] + edge[END] - edge[BEGIN]
    begin = edge[BEGIN] + max(0, held - sizes.chosen)
    report(trace, path, sizes, counts, head, place, Attended(edge[INSIDE], begin, edge[END]))


@compiled
def _begin(trace: Trace, path: Path, sizes: Sizes, group: Head, edges: Int64, layer: int) -> None:
    """Start every head of a layer with its true set."""
    group.slot_of[:] = -1
    group.target_step[:] = -1
    group.use_step[:] = -1
    for number in range(edges.shape[0]):
        head = _head(group, number)
        first = trace.use[path.use_row[0], layer, number]
        edges[number, INSIDE] = candidates(first, sizes, path.use_position[0], head.inside)
        for index in range(edges[number, INSIDE]):
            head.slot_of[head.inside[index]] = index


@compiled
def _advance(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    state: Layer,
    edges: Int64,
    place: tuple[int, int],
) -> None:
    """Move all heads of a layer towards their targets of a step; `place` is (step, layer)."""
    heads, group = edges.shape[0], state.group
    targets, grants = np.zeros(heads, np.int64), np.full(heads, sizes.cap)
    for number in range(heads):
        head, at = _head(group, number), (place[0], place[1], number)
        targets[number] = _aim(trace, path, sizes, head, at, edges[number])
        if state.future.next_use.shape[0] > 0:
            end = edges[number, END]
            look_ahead(head, targets[number], place[0], end, state.future, number)
    if state.over_heads:
        _grant(group, targets, sizes.depth, sizes.cap * heads, grants)
    for number in range(heads):
        granted = Sizes(
            sizes.chosen,
            sizes.pool,
            grants[number],
            sizes.depth,
            sizes.sink,
            sizes.recent,
            sizes.block_tokens,
            sizes.blocks,
        )
        edge = edges[number]
        edge[NEEDED], edge[ADMITTED], edge[INSIDE], edge[BEGIN] = admit(
            _head(group, number), granted, targets[number], edge[RESIDENT]
        )


@compiled
def _run_layer(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    moves: MoveArrays,
    state: Layer,
    layer: int,
) -> None:
    """Run all heads of a layer through the path, step by step."""
    group = state.group
    foresee(trace, path, sizes, layer, group, state.future)
    heads, writes = trace.use.shape[2], moves.offset.shape[0] > 0
    edges = np.zeros((heads, EDGES), np.int64)
    _begin(trace, path, sizes, group, edges, layer)
    for step in range(path.use_row.shape[0]):
        if step == path.first and writes:
            for number in range(heads):
                record_start(_head(group, number), sizes.blocks, moves.start[layer, number])
        if step > 0:
            _advance(trace, path, sizes, state, edges, (step, layer))
        if step < path.first:
            continue
        for number in range(heads):
            head, edge = _head(group, number), edges[number]
            if writes:
                row = ((step - path.first) * trace.use.shape[1] + layer) * heads + number
                write_moves(moves, head, row, edge[ADMITTED])
            _settle(trace, path, sizes, counts, head, (step, layer, number), edge)


@compiled
def run_together(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    moves: MoveArrays,
    over_heads: bool,
    belady: bool,
) -> None:
    """Run every layer: heads share one cap (`over_heads`), eviction knows the future (`belady`)."""
    heads = trace.use.shape[2]
    known = heads if belady else 0
    future = Future(
        np.empty((known, path.use_row.shape[0], sizes.chosen + 1), np.int32),
        np.empty((known, sizes.blocks), np.int32),
    )
    group = Head(
        np.empty((heads, sizes.blocks), np.int32),
        np.empty((heads, sizes.blocks), np.int32),
        np.empty((heads, sizes.blocks), np.int32),
        np.empty((heads, sizes.chosen + 1), np.uint16),
        np.empty((heads, sizes.chosen + 1), np.uint16),
        np.empty((heads, sizes.chosen + 1), np.uint16),
        np.empty((heads, sizes.pool + sizes.chosen + 1), np.uint16),
    )
    for layer in range(trace.use.shape[1]):
        _run_layer(trace, path, sizes, counts, moves, Layer(group, over_heads, future), layer)
