"""Run many steps with the same rows in compiled code.

Between two events of the serving loop (an arrival, a finished request, a switch from dense to
sparse) the batch does not change: only contexts grow by one token per step and each sparse row
walks on through its trace. `run_stretch` prices and times such steps one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled, uncounted
from oasis_sim.engine.pipeline import run_step
from oasis_sim.engine.state import NOW, OUT_COLUMNS, PipelineState, StepTimes

LOG_NEEDED = OUT_COLUMNS
LOG_CONTEXT = OUT_COLUMNS + 1
LOG_DENSE_CONTEXT = OUT_COLUMNS + 2
LOG_EXTRA = OUT_COLUMNS + 3
# From here on, a column for the blocks that each rank admitted.
LOG_RANKS = OUT_COLUMNS + 4

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


class Rows(NamedTuple):
    """Hold the running rows; arrays are updated in place, one entry per sparse row.

    `context` int64[B]: tokens whose KV exists before the step. `walk`, `walk_first`, `walk_length`
    int64[B]: the row's place in the walk tables, and where its trace's cycle begins and how long
    it is. `dense_context` int64[D] is the same as `context` for dense rows.
    """

    context: Int64
    walk: Int64
    walk_first: Int64
    walk_length: Int64
    dense_context: Int64


class WalkTables(NamedTuple):
    """Hold blocks per walk step, and quality proxies.

    GPUs that move equally many blocks in every walk step and layer count as one rank, of R:
    `copies` int64[R] says how many GPUs each stands for. Layers that move equally many blocks on
    every rank form a group: `group` int64[L] is that of each layer, `group_size` int64[G] its
    number of layers. `admitted` int64[steps, G, R] are the blocks of one layer of a group, `needed`
    int64[steps] those of all layers and GPUs. With a ladder of caps the table holds all walk
    steps once per cap, the smallest cap first. `rung_blocks` int64[caps, steps, R] are the blocks
    that each cap admits, all layers together. `tokens` int64[steps] are those that a request
    gains: two where an accepted draft is kept.
    """

    copies: Int64
    group: Int64
    group_size: Int64
    admitted: Int64
    needed: Int64
    quality: Float64
    rung_blocks: Int64
    tokens: Int64

    @property
    def ranks(self) -> int:
        """Return R."""
        return len(self.copies)

    @property
    def gpus(self) -> int:
        """Return the GPUs of all ranks."""
        return int(self.copies.sum())

    @property
    def log_columns(self) -> int:
        """Return the columns of a step's log."""
        return LOG_RANKS + self.ranks


class StretchCosts(NamedTuple):
    """Give the prices of a step of this batch: picoseconds, bytes, and picoseconds per byte."""

    prefill: int
    qkv: int
    output_ffn: int
    lm_head: int
    draft: int
    launch_per_layer: int
    launch_per_step: int
    d2h: int
    kv_bytes_layer: int
    block_tokens: int
    chosen_tokens: int
    attention_ps_per_byte: float
    dense_ps_per_byte: float
    scan_bytes_per_block: int
    scan_ps_per_byte: float
    selection_fixed: int
    selection_per_candidate: float
    selection_per_block: float
    block_bytes: int
    transfer_fixed: int
    transfer_ps_per_byte: float
    on_demand: bool
    rates: Int64
    next_layer: bool
    correction: int
    join: bool
    idle: int
    covered: int
    collective: int
    inline: bool
    own: Int64


@uncounted
def _sum(values: Int64) -> int:
    """Add up (numba's own sum costs seconds of compile time)."""
    total = 0
    for value in values:
        total += value
    return total


@uncounted
def _attended_tokens(rows: Rows, costs: StretchCosts) -> int:
    total = 0
    for context in rows.context:
        local = context % costs.block_tokens + 1
        total += min(context + 1, costs.chosen_tokens + local)
    return total


@compiled
def _step_times(rows: Rows, costs: StretchCosts) -> StepTimes:
    blocks = 0
    for context in rows.context:
        blocks += context // costs.block_tokens
    dense_tokens = _sum(rows.dense_context) + len(rows.dense_context)
    sparse_bytes = _attended_tokens(rows, costs) * costs.kv_bytes_layer
    attention = sparse_bytes * costs.attention_ps_per_byte
    attention += dense_tokens * costs.kv_bytes_layer * costs.dense_ps_per_byte
    scan = blocks * costs.scan_bytes_per_block * costs.scan_ps_per_byte
    selection = 0
    if len(rows.context) > 0:
        scored = blocks * costs.selection_per_candidate
        mean_blocks = blocks / len(rows.context)
        selection = costs.selection_fixed
        selection += round(scored + mean_blocks * costs.selection_per_block)
    return StepTimes(
        costs.prefill,
        costs.qkv,
        round(attention),
        costs.output_ffn,
        costs.lm_head,
        costs.draft,
        round(scan),
        selection,
        costs.launch_per_layer,
        costs.launch_per_step,
        costs.d2h,
        costs.on_demand,
        costs.rates,
        costs.join,
        costs.next_layer,
        costs.correction,
        costs.idle,
        costs.covered,
        costs.collective,
        costs.inline,
        costs.own,
    )


@uncounted
def _widest_cap(
    rows: Rows, tables: WalkTables, costs: StretchCosts, times: StepTimes, layers: int
) -> int:
    """Return where the table of the widest cap begins whose transfers hide on every rank."""
    room = times.qkv + times.attention + times.output_ffn + times.collective
    room += times.launch_per_layer + (times.prediction if times.inline else 0)
    room = room * layers + times.lm_head + times.draft + times.launch_per_step
    chosen = 0
    for rung in range(1, tables.rung_blocks.shape[0]):
        most = 0
        for rank in range(tables.rung_blocks.shape[2]):
            blocks = 0
            for row in rows.walk:
                blocks += tables.rung_blocks[rung, row, rank]
            most = max(most, blocks)
        moved = most * costs.block_bytes * costs.transfer_ps_per_byte
        if moved + costs.transfer_fixed * layers > room:
            break
        chosen = rung
    first: int = chosen * tables.rung_blocks.shape[1]
    return first


@uncounted
def _gather_blocks(
    rows: Rows, tables: WalkTables, base: int, costs: StretchCosts, transfer: Int64, log: Int64
) -> None:
    """Sum this step's moves over the rows, per layer group and rank; turn them into transfer times.

    `base` is where the table of the step's cap begins.
    """
    groups, ranks = transfer.shape
    sums, size = transfer.reshape(-1), transfer.size
    admitted = tables.admitted.reshape((-1, size))
    for place in range(size):
        sums[place] = 0
    for row in rows.walk:
        log[LOG_NEEDED] += tables.needed[base + row]
        for place in range(size):
            sums[place] += admitted[base + row, place]
    for group in range(groups):
        for rank in range(ranks):
            blocks = transfer[group, rank]
            log[LOG_RANKS + rank] += blocks * tables.group_size[group]
            if blocks > 0:
                moved = blocks * costs.block_bytes * costs.transfer_ps_per_byte
                transfer[group, rank] = costs.transfer_fixed + round(moved)


@compiled
def begin_step(
    rows: Rows,
    tables: WalkTables,
    costs: StretchCosts,
    transfer: Int64,
    log: Int64,
    quality: Float64,
) -> StepTimes:
    """Price a step of these rows; fill its transfers and what its log says of rows and blocks."""
    log[LOG_NEEDED] = 0
    for rank in range(transfer.shape[1]):
        log[LOG_RANKS + rank] = 0
    log[LOG_DENSE_CONTEXT] = _sum(rows.dense_context)
    log[LOG_CONTEXT] = _sum(rows.context) + log[LOG_DENSE_CONTEXT]
    times = _step_times(rows, costs)
    base = _widest_cap(rows, tables, costs, times, tables.group.shape[0])
    _gather_blocks(rows, tables, base, costs, transfer, log)
    for column in range(quality.shape[0]):
        quality[column] = 0.0
        for row in rows.walk:
            quality[column] += tables.quality[base + row, column]
    return times


@uncounted
def advance_rows(rows: Rows, tables: WalkTables) -> int:
    """Move every row on; return the tokens gained beside one per row."""
    extra = 0
    for i in range(len(rows.context)):
        gained = tables.tokens[rows.walk[i]]
        rows.context[i] += gained
        extra += gained - 1
        place = rows.walk[i] - rows.walk_first[i] + 1
        rows.walk[i] = rows.walk_first[i] + place % rows.walk_length[i]
    for i in range(len(rows.dense_context)):
        rows.dense_context[i] += 1
    return extra


@compiled
def run_stretch(
    state: PipelineState,
    rows: Rows,
    tables: WalkTables,
    costs: StretchCosts,
    limit_ps: int,
    log: Int64,
    quality: Float64,
    marks: Int64,
) -> int:
    """Run up to len(log) steps, stop after the first that ends at or after `limit_ps`.

    `log` int64[n, `WalkTables.log_columns`] and `quality` float64[n, Q] receive one row per step:
    the stage times of `run_step`, blocks needed, the sum of contexts (all rows, dense rows), the
    tokens gained beside one per row, blocks admitted by each rank, and the sums over rows of the
    walk's quality columns. `marks` as in `run_step`. Returns how many steps ran.
    """
    transfer = np.zeros(tables.admitted.shape[1:], dtype=np.int64)
    for step in range(len(log)):
        times = begin_step(rows, tables, costs, transfer, log[step], quality[step])
        run_step(state, times, transfer, tables.group, log[step], marks)
        log[step, LOG_EXTRA] = advance_rows(rows, tables)
        if state.scalars[NOW] >= limit_ps:
            return step + 1
    return len(log)
