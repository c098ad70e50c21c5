"""The compiled core of residency: every head of a trace through every step.

It gives what ``oasis_sim.residency.plain`` gives, without sorting the pool. Blocks of the current
target need no order. Those outside it are kept in eviction order: a block leaves the target
with the stamp of the step before, the newest there is, so blocks that leave are appended to the
end, sorted by id among themselves.
"""

from __future__ import annotations

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

_NO_BLOCK = 65535

Blocks = NDArray[np.uint16]


@compiled
def _choose(order: Blocks, first: int, last: int, limit: int, chosen: Blocks) -> int:
    """Copy the first `limit` blocks of an order that lie in first..last; return how many."""
    count = 0
    for index in range(order.shape[0]):
        block = order[index]
        if count == limit or block == _NO_BLOCK:
            break
        chosen[count] = block
        count += (block >= first) & (block <= last)
    return count


@compiled
def sort_outside(head: Head, step: int, inside: int, begin: int, end: int) -> int:
    """Bring `outside` up to date for a new target: drop what it names, append what it leaves.

    The copying loops write first and advance if the block is kept: no branch to mispredict.
    """
    outside, within, target_step = head.outside, head.inside, head.target_step
    count = 0
    for index in range(begin, end):
        block = outside[index]
        outside[count] = block
        count += target_step[block] != step
    kept = count
    for index in range(inside):
        block = within[index]
        outside[count] = block
        count += target_step[block] != step
    for index in range(kept + 1, count):
        block = outside[index]
        place = index
        while place > kept and outside[place - 1] > block:
            outside[place] = outside[place - 1]
            place -= 1
        outside[place] = block
    return count


@compiled
def admit(head: Head, sizes: Sizes, target: int, resident: int) -> tuple[int, int, int, int]:
    """Give slots to the first missing target blocks; return needed, admitted, inside, evicted."""
    slot_of, chosen, missing = head.slot_of, head.chosen, head.missing
    within, outside = head.inside, head.outside
    needed = 0
    eligible = 0
    inside = 0
    for index in range(target):
        block = chosen[index]
        here = slot_of[block] >= 0
        within[inside] = block
        inside += here
        missing[needed] = block
        needed += not here
        eligible += (not here) & (index < sizes.depth)
    admitted = min(eligible, sizes.cap)
    free = sizes.pool - resident
    for index in range(admitted):
        block = missing[index]
        slot = resident + index
        if index >= free:
            victim = outside[index - free]
            slot = slot_of[victim]
            slot_of[victim] = -1
        slot_of[block] = slot
        within[inside] = block
        inside += 1
    return needed, admitted, inside, max(0, admitted - free)


@compiled
def _overlap(head: Head, step: int, used: int, attended: Attended) -> int:
    """Count the attended blocks that the true set, in `head.chosen`, holds too."""
    use_step, chosen, within, outside = head.use_step, head.chosen, head.inside, head.outside
    for index in range(used):
        use_step[chosen[index]] = step
    overlap = 0
    for index in range(attended.inside):
        overlap += use_step[within[index]] == step
    for index in range(attended.begin, attended.end):
        overlap += use_step[outside[index]] == step
    return overlap


@compiled
def captured_mass(
    head: Head,
    sizes: Sizes,
    position: int,
    mass: NDArray[np.uint8],
    units: NDArray[np.int64],
    attended: Attended,
) -> int:
    """Sum the mass of attended blocks, of the sink and of the newest blocks, each once."""
    within, outside = head.inside, head.outside
    blocks = min(position // sizes.block_tokens + 1, mass.shape[0])
    newest = min(position // sizes.block_tokens - sizes.recent, blocks - 1)
    captured = 0
    for index in range(attended.inside):
        if within[index] <= newest:
            captured += units[mass[within[index]]]
    for index in range(attended.begin, attended.end):
        if outside[index] <= newest:
            captured += units[mass[outside[index]]]
    for block in range(min(sizes.sink, blocks)):
        captured += units[mass[block]]
    for block in range(max(sizes.sink, newest + 1), blocks):
        captured += units[mass[block]]
    return captured


@compiled
def record_start(head: Head, blocks: int, start: Blocks) -> None:
    """Write which block each slot holds."""
    for block in range(blocks):
        if head.slot_of[block] >= 0:
            start[head.slot_of[block]] = block


@compiled
def candidates(order: Blocks, sizes: Sizes, position: int, chosen: Blocks) -> int:
    """Choose from an order among the candidates of a position; return how many."""
    last = position // sizes.block_tokens - sizes.recent
    return _choose(order, sizes.sink, last, sizes.chosen, chosen)


@compiled
def report(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    head: Head,
    place: tuple[int, int, int],
    attended: Attended,
) -> None:
    """Write overlap and mass of the attended blocks; `place` is (step, layer, head)."""
    step, layer, number = place
    row, position = path.use_row[step], path.use_position[step]
    out = step - path.first
    used = candidates(trace.use[row, layer, number], sizes, position, head.chosen)
    counts.overlap[out, layer, number] = _overlap(head, step, used, attended)
    mass = trace.mass[row, layer, number]
    if mass.shape[0] > 0:
        counts.mass[out, layer, number] = captured_mass(
            head, sizes, position, mass, trace.mass_units, attended
        )


@compiled
def write_moves(moves: MoveArrays, head: Head, row: int, admitted: int) -> None:
    """Write the blocks that a step admitted, at the place reserved for it."""
    for index in range(admitted):
        to = moves.offset[row] + index
        moves.block[to] = head.missing[index]
        moves.slot[to] = head.slot_of[head.missing[index]]


@compiled
def _run_head(
    trace: Trace,
    path: Path,
    sizes: Sizes,
    counts: Counts,
    moves: MoveArrays,
    head: Head,
    place: tuple[int, int],
) -> None:
    """Run one head, (layer, head), through the path; write its counts and moves."""
    layer, number = place
    head.slot_of[:] = -1
    head.target_step[:] = -1
    head.use_step[:] = -1
    first = trace.use[path.use_row[0], layer, number]
    inside = candidates(first, sizes, path.use_position[0], head.inside)
    for index in range(inside):
        head.slot_of[head.inside[index]] = index
    begin, end, needed, admitted = 0, 0, 0, 0
    for step in range(path.use_row.shape[0]):
        if step == path.first and moves.offset.shape[0] > 0:
            record_start(head, sizes.blocks, moves.start[layer, number])
        if step > 0:
            resident = inside + end - begin
            order = trace.target[path.target_row[step], layer, number]
            target = candidates(order, sizes, path.target_position[step], head.chosen)
            for index in range(target):
                head.target_step[head.chosen[index]] = step
            end = sort_outside(head, step, inside, begin, end)
            needed, admitted, inside, begin = admit(head, sizes, target, resident)
        out = step - path.first
        if out < 0:
            continue
        if moves.offset.shape[0] > 0:
            row = (out * trace.use.shape[1] + layer) * trace.use.shape[2] + number
            write_moves(moves, head, row, admitted)
        counts.needed[out, layer, number] = needed
        counts.admitted[out, layer, number] = admitted
        unread = max(0, inside + end - begin - sizes.chosen)
        attended = Attended(inside, begin + unread, end)
        report(trace, path, sizes, counts, head, (step, layer, number), attended)


@compiled
def run_heads(trace: Trace, path: Path, sizes: Sizes, counts: Counts, moves: MoveArrays) -> None:
    """Run every head through the path."""
    head = Head(
        np.empty(sizes.blocks, np.int32),
        np.empty(sizes.blocks, np.int32),
        np.empty(sizes.blocks, np.int32),
        np.empty(sizes.chosen + 1, np.uint16),
        np.empty(sizes.chosen + 1, np.uint16),
        np.empty(sizes.chosen + 1, np.uint16),
        np.empty(sizes.pool + sizes.chosen + 1, np.uint16),
    )
    for layer in range(trace.use.shape[1]):
        for number in range(trace.use.shape[2]):
            _run_head(trace, path, sizes, counts, moves, head, (layer, number))
