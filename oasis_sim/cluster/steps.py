"""Decode steps that wait for blocks from another node: the engine's stretch, with the network.

True misses are fetched one step ahead, aggregated by layer, and then gathered into HBM: the fetch
of a layer stands in front of its gather, in the same first-in first-out stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled, uncounted
from oasis_sim.engine.pipeline import run_step
from oasis_sim.engine.state import NOW, OUT_END, OUT_WAIT, PipelineState
from oasis_sim.engine.stretch import (
    LOG_EXTRA,
    Rows,
    StretchCosts,
    WalkTables,
    advance_rows,
    begin_step,
)

# The last column, behind those of the engine.
LOG_REMOTE = -1

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class RemoteRows(NamedTuple):
    """Hold what the sparse rows miss, one entry per row, updated in place.

    `place` int64[B] is a row's place in `share` float64[N, G], which grows with every step;
    `rest` float64[B, G] and `phase` float64[B] as in `growth.Need`; `fetches` int64[1] counts.
    """

    place: Int64
    rest: Float64
    phase: Float64
    share: Float64
    fetches: Int64


class StepOut(NamedTuple):
    """Say where steps stop, and receive what they did.

    `log` int64[n, ...], `quality` float64[n, Q] and `marks` are filled as in
    ``stretch.run_stretch``, up to the first step that ends at or after `limit_ps`; `log` has one
    column more, LOG_REMOTE: blocks of one layer (all heads) that came over the network.
    """

    limit_ps: int
    log: Int64
    quality: Float64
    marks: Int64


class FetchCosts(NamedTuple):
    """Give the price of a layer's fetch: once and per block.

    Of `late_of` fetches `late_parts` are `late` too; 0 of 1 where nothing breaks.
    """

    fixed: int
    per_block: float
    late_parts: int
    late_of: int
    late: int


@uncounted
def _missed(remote: RemoteRows, blocks: Float64) -> None:
    """Count the blocks of one layer of each group that this step misses, float64[G]."""
    blocks[:] = 0.0
    for row in range(remote.place.shape[0]):
        at, phase = remote.place[row], remote.phase[row]
        for group in range(blocks.shape[0]):
            rest = remote.rest[row, group]
            before = np.floor(rest * remote.share[at, group] + phase)
            blocks[group] += np.floor(rest * remote.share[at + 1, group] + phase) - before


@uncounted
def _fetch(
    remote: RemoteRows,
    fetch: FetchCosts,
    sizes: Int64,
    missed: Float64,
    transfer: Int64,
    log: Int64,
) -> int:
    """Add the fetches of this step to the transfers; return how long late ones hold it up.

    A fetch is for all heads: the gathers of every rank follow it.
    """
    late = 0
    if remote.share.shape[0] == 0:
        return late
    _missed(remote, missed)
    for group in range(transfer.shape[0]):
        blocks = int(missed[group])
        if blocks > 0:
            for rank in range(transfer.shape[1]):
                transfer[group, rank] += fetch.fixed + round(blocks * fetch.per_block)
            log[LOG_REMOTE] += blocks * sizes[group]
            if fetch.late_parts > 0:
                old = remote.fetches[0] * fetch.late_parts // fetch.late_of
                remote.fetches[0] += sizes[group]
                new = remote.fetches[0] * fetch.late_parts // fetch.late_of
                late += (new - old) * fetch.late
    return late


@compiled
def run_remote_stretch(
    state: PipelineState,
    rows: Rows,
    tables: WalkTables,
    costs: StretchCosts,
    remote: RemoteRows,
    fetch: FetchCosts,
    out: StepOut,
) -> int:
    """Run steps like ``stretch.run_stretch``, with the blocks of other nodes; return how many ran.

    A row of `remote` without anything to fetch has `rest` 0.
    """
    limit_ps, log, quality, marks = out
    transfer = np.zeros(tables.admitted.shape[1:], dtype=np.int64)
    missed = np.zeros(len(tables.group_size))
    for step in range(len(log)):
        line = log[step]
        times = begin_step(rows, tables, costs, transfer, line, quality[step])
        line[LOG_REMOTE] = 0
        late = _fetch(remote, fetch, tables.group_size, missed, transfer, line)
        run_step(state, times, transfer, tables.group, line, marks)
        if late > 0:
            state.scalars[NOW] += late
            line[OUT_END] += late
            line[OUT_WAIT] += late
        line[LOG_EXTRA] = advance_rows(rows, tables)
        for row in range(remote.place.shape[0]):
            remote.place[row] += 1
        if state.scalars[NOW] >= limit_ps:
            return step + 1
    return len(log)
