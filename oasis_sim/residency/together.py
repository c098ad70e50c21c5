"""The compiled core for rules that see other heads, the future, or what attention has read.

The heads of a layer, or of all layers that share a cap, go from step to step together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oasis_sim.compiled import compiled
from oasis_sim.residency.arrays import (
    LAYERS,
    OWN,
    Attended,
    Counts,
    Head,
    MoveArrays,
    Path,
    Sizes,
    Trace,
    Ways,
)
from oasis_sim.residency.core import (
    admit,
    candidates,
    captured_mass,
    record_start,
    report,
    sort_outside,
    write_moves,
)
from oasis_sim.residency.future import Future, foresee, look_ahead
from oasis_sim.residency.grants import split, spread
from oasis_sim.residency.observed import (
    UNREAD,
    Observed,
    Reading,
    forget,
    gainful,
    least_attended_first,
    observe,
)

Int64 = NDArray[np.int64]

# Columns of a head's edges: resident blocks inside the target, where those outside begin and end
# in their list, how many were resident before the step, and what the step needed and admitted.
INSIDE, BEGIN, END, RESIDENT, NEEDED, ADMITTED = range(6)
EDGES = 6


class Team(NamedTuple):
    """Hold heads that go together: one, those of a layer, or those of all layers.

    Their arrays have rows, layer by layer, as first axis. `first` is the first row's number among
    all heads of the trace, `heads` how many a layer has.
    """

    group: Head
    first: int
    heads: int
    future: Future
    observed: Observed
    edges: Int64


@compiled
def _head(group: Head, row: int) -> Head:
    """Return the state of one head of a team, whose arrays are rows of the group's."""
    return Head(
        group.slot_of[row],
        group.target_step[row],
        group.use_step[row],
        group.chosen[row],
        group.missing[row],
        group.inside[row],
        group.outside[row],
    )


@compiled
def _place(team: Team, row: int) -> tuple[int, int]:
    """Return (layer, head) of a row."""
    return (team.first + row) // team.heads, (team.first + row) % team.heads


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
def _begin(trace: Trace, path: Path, sizes: Sizes, ways: Ways, team: Team) -> None:
    """Start every head with its true set."""
    team.group.slot_of[:] = -1
    team.group.target_step[:] = -1
    team.group.use_step[:] = -1
    team.observed.held[:] = UNREAD
    team.observed.known[:] = UNREAD
    team.observed.worth[:] = UNREAD
    team.observed.known_worth[:] = UNREAD
    for row in range(team.edges.shape[0]):
        head = _head(team.group, row)
        layer, number = _place(team, row)
        if ways.belady:
            foresee(trace, path, sizes, (layer, number), head.chosen, team.future, row)
        first = trace.use[path.use_row[0], layer, number]
        team.edges[row, INSIDE] = candidates(first, sizes, path.use_position[0], head.inside)
        for index in range(team.edges[row, INSIDE]):
            head.slot_of[head.inside[index]] = index


@compiled
def _grant(sizes: Sizes, sharing: int, team: Team, targets: Int64, limits: Int64) -> Int64:
    """Return how many blocks each head may admit, int64[rows]."""
    if sharing == OWN:
        return np.minimum(limits, sizes.cap)
    rows, heads = team.edges.shape[0], team.heads
    grants, eligible = np.empty(rows, np.int64), np.minimum(targets, sizes.depth)
    quotas, needed = np.full(rows // heads, sizes.cap * heads), np.zeros(rows // heads, np.int64)
    if sharing == LAYERS:
        for row in range(rows):
            needed[row // heads] += team.edges[row, NEEDED]
        split(needed, sizes.cap * rows, quotas)
    for layer in range(rows // heads):
        span = (layer * heads, (layer + 1) * heads)
        spread(team.group, span, eligible, limits, quotas[layer], grants)
    return grants


@compiled
def _advance(trace: Trace, path: Path, sizes: Sizes, ways: Ways, team: Team, step: int) -> None:
    """Move all heads towards their targets of a step."""
    rows, observed = team.edges.shape[0], team.observed
    targets, limits = np.zeros(rows, np.int64), np.full(rows, sizes.pool)
    for row in range(rows):
        head, edge = _head(team.group, row), team.edges[row]
        layer, number = _place(team, row)
        targets[row] = _aim(trace, path, sizes, head, (step, layer, number), edge)
        if ways.belady:
            look_ahead(head, targets[row], step, edge[END], team.future, row)
        if ways.least_attended:
            least_attended_first(head, edge[END], observed.known[row])
        if ways.gainful:
            free, worth = sizes.pool - edge[RESIDENT], observed.known_worth[row]
            limits[row] = gainful(head, edge[END], free, observed.known[row], worth)
    grants = _grant(sizes, ways.sharing, team, targets, limits)
    for row in range(rows):
        granted = Sizes(
            sizes.chosen,
            sizes.pool,
            grants[row],
            sizes.depth,
            sizes.sink,
            sizes.recent,
            sizes.block_tokens,
            sizes.blocks,
        )
        head, edge = _head(team.group, row), team.edges[row]
        edge[NEEDED], edge[ADMITTED], edge[INSIDE], edge[BEGIN] = admit(
            head, granted, targets[row], edge[RESIDENT]
        )
        if ways.least_attended:
            forget(head, edge[ADMITTED], observed, row)


@compiled
def _attended(sizes: Sizes, edge: Int64) -> Attended:
    """Say what a head attends: its target, and of the other blocks those that leave last."""
    held = edge[INSIDE] + edge[END] - edge[BEGIN]
    return Attended(edge[INSIDE], edge[BEGIN] + max(0, held - sizes.chosen), edge[END])


@compiled
def _look_back(trace: Trace, path: Path, sizes: Sizes, team: Team, step: int) -> None:
    """Let every head note what attention read of its blocks in a step."""
    for row in range(team.edges.shape[0]):
        head, edge = _head(team.group, row), team.edges[row]
        layer, number = _place(team, row)
        attended, position = _attended(sizes, edge), path.use_position[step]
        mass = trace.mass[path.use_row[step], layer, number]
        captured = captured_mass(head, sizes, position, mass, trace.mass_units, attended)
        blocks = min(position // sizes.block_tokens + 1, mass.shape[0])
        reading = Reading(mass, trace.mass_units, blocks, max(captured, 1))
        observe(head, edge[ADMITTED], attended, reading, team.observed, row)


@compiled
def _write(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    moves: MoveArrays,
    team: Team,
    step: int,
) -> None:
    """Write what every head did in a step."""
    out = step - path.first
    for row in range(team.edges.shape[0]):
        head, edge = _head(team.group, row), team.edges[row]
        layer, number = _place(team, row)
        if moves.offset.shape[0] > 0:
            to = (out * trace.use.shape[1] + layer) * team.heads + number
            write_moves(moves, head, to, edge[ADMITTED])
        counts.needed[out, layer, number] = edge[NEEDED]
        counts.admitted[out, layer, number] = edge[ADMITTED]
        place = (step, layer, number)
        report(trace, path, sizes, counts, head, place, _attended(sizes, edge))


@compiled
def _run_team(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    moves: MoveArrays,
    ways: Ways,
    team: Team,
) -> None:
    """Run the heads of a team through the path, step by step."""
    _begin(trace, path, sizes, ways, team)
    for step in range(path.use_row.shape[0]):
        if step == path.first and moves.offset.shape[0] > 0:
            for row in range(team.edges.shape[0]):
                layer, number = _place(team, row)
                record_start(_head(team.group, row), sizes.blocks, moves.start[layer, number])
        if step > 0:
            _advance(trace, path, sizes, ways, team, step)
        if ways.least_attended:
            _look_back(trace, path, sizes, team, step)
        if step >= path.first:
            _write(trace, path, sizes, counts, moves, team, step)


@compiled
def run_together(
    trace: Trace, path: Path, sizes: Sizes, counts: Counts, moves: MoveArrays, ways: Ways
) -> None:
    """Run every head through the path; those that share caps together, else one by one."""
    layers, heads = trace.use.shape[1:3]
    rows = 1 if ways.sharing == OWN else heads
    if ways.sharing == LAYERS:
        rows = layers * heads
    foreseen, noted = rows if ways.belady else 0, rows if ways.least_attended else 0
    future = Future(
        np.empty((foreseen, path.use_row.shape[0], sizes.chosen + 1), np.int32),
        np.empty((foreseen, sizes.blocks), np.int32),
    )
    observed = Observed(
        np.empty((noted, sizes.blocks)),
        np.empty((noted, sizes.blocks)),
        np.empty(noted),
        np.empty(noted),
    )
    group = Head(
        np.empty((rows, sizes.blocks), np.int32),
        np.empty((rows, sizes.blocks), np.int32),
        np.empty((rows, sizes.blocks), np.int32),
        np.empty((rows, sizes.chosen + 1), np.uint16),
        np.empty((rows, sizes.chosen + 1), np.uint16),
        np.empty((rows, sizes.chosen + 1), np.uint16),
        np.empty((rows, sizes.pool + sizes.chosen + 1), np.uint16),
    )
    for first in range(0, layers * heads, rows):
        edges = np.zeros((rows, EDGES), np.int64)
        team = Team(group, first, heads, future, observed, edges)
        _run_team(trace, path, sizes, counts, moves, ways, team)
