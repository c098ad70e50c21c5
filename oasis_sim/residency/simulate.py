"""Residency over whole arrays: the entrance to the compiled core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.residency import arrays, core, together
from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.trace.mass import mass_table
from oasis_sim.trace.trace import NO_BLOCK, Order

Run = Callable[[arrays.Trace, arrays.Path, arrays.Sizes, arrays.Counts, arrays.MoveArrays], None]


def straight_path(
    position: NDArray[np.int32], target_row: NDArray[np.int64], target_step: NDArray[np.int64]
) -> StepPath:
    """Build the path that reads a trace once, first step to last.

    ``target_row`` int64[T] picks the order a step's target comes from; its candidates are those
    of ``target_step`` int64[T] (token positions).
    """
    rows = np.arange(len(position), dtype=np.int64)
    return StepPath(rows, position.astype(np.int64), target_row, target_step)


def simulate(
    use_order: Order,
    targets: Order,
    position: NDArray[np.int32],
    rule: ResidencyRule,
    *,
    mass: NDArray[np.uint8] | None = None,
    moves: bool = False,
) -> ResidencyLog:
    """Simulate aligned targets: ``targets[s]`` is the order that was predicted for step s.

    Orders uint16[T, L, H, M], position int32[T], mass uint8[T, L, H, NB] codes. Step 0 starts
    from the true set; ``targets[0]`` is not read. With ``rule.on_demand`` the true order itself
    is the target of every step. The candidates of a target are those of the step it is for.
    """
    rows = np.arange(len(position), dtype=np.int64)
    path = straight_path(position, rows, position.astype(np.int64))
    source = use_order if rule.on_demand else targets
    return simulate_path(use_order, source, path, rule, mass=mass, moves=moves)


def simulate_path(
    use_order: Order,
    target_order: Order,
    path: StepPath,
    rule: ResidencyRule,
    *,
    mass: NDArray[np.uint8] | None = None,
    moves: bool = False,
) -> ResidencyLog:
    """Simulate every head of the arrays along a path; see ``StepPath``.

    Raises InputError when the arrays do not fit each other or the path.
    """
    _check(use_order, target_order, path, mass)
    if rule.least_attended and mass is None:
        raise InputError(
            "eviction of the least attended block needs the attention mass of every block",
            field="mass",
            fix="use a trace that holds it, or evict least_recently_selected",
        )
    trace = _core_trace(use_order, target_order, mass)
    shape = (path.reported, *use_order.shape[1:3])
    counts = arrays.Counts(
        np.zeros(shape, dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros(shape, dtype=np.int64),
    )
    nothing = arrays.MoveArrays(
        np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.uint16), _start(shape, 0)
    )
    sizes = _core_sizes(rule, path)
    way = _core_path(path)
    run = _runner(rule)
    run(trace, way, sizes, counts, nothing)
    found = _moves(run, trace, way, sizes, counts) if moves else None
    captured = None if mass is None else counts.mass / arrays.MASS_UNITS
    return ResidencyLog(counts.needed, counts.admitted, counts.overlap, captured, found)


def _runner(rule: ResidencyRule) -> Run:
    """Return the compiled function for a rule: head by head, or many heads step by step."""
    sharing = arrays.LAYERS if rule.cap_over_layers else arrays.LAYER
    if not rule.cap_over_heads and not rule.cap_over_layers:
        sharing = arrays.OWN
    if sharing == arrays.OWN and not rule.belady and not rule.least_attended:
        return core.run_heads
    ways = arrays.Ways(sharing, rule.belady, rule.least_attended, rule.gainful)

    def run(
        trace: arrays.Trace,
        path: arrays.Path,
        sizes: arrays.Sizes,
        counts: arrays.Counts,
        moves: arrays.MoveArrays,
    ) -> None:
        together.run_together(trace, path, sizes, counts, moves, ways)

    return run


def total_mass(mass: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mass of all blocks, float64[len(rows), L, H], summed as the core sums it."""
    units = _mass_units()
    distinct, where = np.unique(rows, return_inverse=True)
    totals = np.stack([units[mass[row]].sum(axis=-1) for row in distinct])
    return np.asarray(totals[where] / arrays.MASS_UNITS, dtype=np.float64)


def _moves(
    run: Run, trace: arrays.Trace, path: arrays.Path, sizes: arrays.Sizes, counts: arrays.Counts
) -> Moves:
    """Run again, now that the number of moves is known, and write them."""
    offset = np.zeros(counts.admitted.size + 1, dtype=np.int64)
    np.cumsum(counts.admitted.ravel(), out=offset[1:])
    found = arrays.MoveArrays(
        offset,
        np.zeros(int(offset[-1]), dtype=np.uint16),
        np.zeros(int(offset[-1]), dtype=np.uint16),
        _start(counts.admitted.shape, sizes.pool),
    )
    run(trace, path, sizes, counts, found)
    return Moves(found.offset, found.block, found.slot, found.start)


def _start(shape: tuple[int, ...], pool: int) -> NDArray[np.uint16]:
    """Return empty pools for the heads of a log's shape."""
    return np.full((*shape[1:], pool), NO_BLOCK, dtype=np.uint16)


def _mass_units() -> NDArray[np.int64]:
    """Return the mass of each code in the core's integer units."""
    return np.rint(mass_table() * arrays.MASS_UNITS).astype(np.int64)


def _core_trace(
    use_order: Order, target_order: Order, mass: NDArray[np.uint8] | None
) -> arrays.Trace:
    """Bring arrays to the one layout that the core is compiled for."""
    codes = np.zeros((*use_order.shape[:3], 0), dtype=np.uint8) if mass is None else mass
    return arrays.Trace(
        np.require(use_order, np.uint16, ["C", "W"]),
        np.require(target_order, np.uint16, ["C", "W"]),
        np.require(codes, np.uint8, ["C", "W"]),
        _mass_units(),
    )


def _core_path(path: StepPath) -> arrays.Path:
    """Bring a path to the core's types."""
    return arrays.Path(
        _core_array(path.use_row),
        _core_array(path.use_position),
        _core_array(path.target_row),
        _core_array(path.target_position),
        path.first,
    )


def _core_array(array: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.require(array, np.int64, ["C", "W"])


def _core_sizes(rule: ResidencyRule, path: StepPath) -> arrays.Sizes:
    """Clamp the rule to the core's integers."""
    furthest = int(max(path.use_position.max(), path.target_position.max()))
    return arrays.Sizes(
        rule.chosen_blocks,
        rule.pool_blocks,
        min(rule.cap_blocks, rule.pool_blocks),
        rule.depth,
        rule.sink_blocks,
        rule.recent_blocks,
        rule.block_tokens,
        furthest // rule.block_tokens + 1,
    )


def _check(
    use_order: Order, target_order: Order, path: StepPath, mass: NDArray[np.uint8] | None
) -> None:
    """Refuse arrays of different traces, and rows that do not exist."""
    for name, array in (("target order", target_order), ("mass", mass)):
        if array is not None and array.shape[:3] != use_order.shape[:3]:
            raise InputError(
                f"{name} has shape {array.shape[:3]}, the use order {use_order.shape[:3]}",
                fix="give arrays of one trace",
            )
    lengths = {len(path.use_position), len(path.target_row), len(path.target_position)}
    if path.steps == 0 or lengths != {path.steps} or not 0 <= path.first < path.steps:
        raise InputError("the path's arrays must have one length, of 1 or more steps")
    for rows in (path.use_row, path.target_row):
        if rows.min() < 0 or rows.max() >= use_order.shape[0]:
            raise InputError(f"the path leaves the {use_order.shape[0]} steps of the trace")
    if path.use_position.min() < 0 or path.target_position.min() < 0:
        raise InputError("token positions must be 0 or more", field="position")
