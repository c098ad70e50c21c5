"""The decode step as a compiled recurrence over layers, ranks, streams and links.

Four streams as in the paper (section 2 of arXiv 2608.08097): the foreground runs QKV, attention,
output and FFN of every layer, then the LM head and the draft model; prediction, selection and
transfer of a layer follow its QKV in the background (prediction in the foreground, where an engine
runs it inline). Attention of layer l at step t+1 waits for the transfer of layer l issued at step
t. Every rank (GPU of a tensor-parallel group) has streams
of its own; the foregrounds meet in the collectives (`layer`). All times are integer picoseconds.

Stages that run side by side slow each other down (`streams`). Layers that begin like the one
before them, with the same transfers, also go on like it: they are not computed but shifted, so that
the cost of a step grows with the number of different layers only (`passing`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.compiled import compiled, uncounted
from oasis_sim.engine.drain import drain
from oasis_sim.engine.layer import asked, run_layer, run_linear, run_own
from oasis_sim.engine.passing import Seen, layers_alike, nothing_seen, pass_over
from oasis_sim.engine.state import (
    D2H_FREE,
    D2H_STEP_END,
    DRAFT,
    LM_HEAD,
    NOW,
    OUT_ATTENTION,
    OUT_COLUMNS,
    OUT_DRAFT,
    OUT_END,
    OUT_FFN,
    OUT_LAUNCH,
    OUT_LM_HEAD,
    OUT_PREDICTION,
    OUT_PREFILL,
    OUT_QKV,
    OUT_SELECTION,
    OUT_START,
    OUT_TRANSFER,
    OUT_WAIT,
    PipelineState,
    StepTimes,
)
from oasis_sim.engine.streams import (
    PREDICTION,
    RATE_BITS,
    SELECTION,
    STREAMS,
    TRANSFER,
    look,
)

Int64 = npt.NDArray[np.int64]


@uncounted
def _add_up(
    times: StepTimes, moves: Int64, marks: Int64, layer: int, count: int, out: Int64, busy: Int64
) -> None:
    """Count `count` layers that did what `layer` did.

    A foreground stage lasts from the first rank's start to the last rank's end, without the wait.
    """
    start = projected = marks[0, layer, 0]
    free = ready = done = start
    for rank in range(moves.shape[0]):
        mark, base = marks[rank, layer], STREAMS * rank
        projected, free = max(projected, mark[1]), max(free, asked(times, mark))
        ready, done = max(ready, mark[2]), max(done, mark[3])
        if not times.inline:
            busy[base + PREDICTION] += count * (mark[7] - mark[6])
        busy[base + SELECTION] += count * (mark[9] - mark[8])
        corrected = (moves[rank] * times.correction) >> RATE_BITS
        busy[base + TRANSFER] += count * (mark[11] - mark[10] + corrected)
    out[OUT_QKV] += count * (projected - start)
    out[OUT_PREDICTION] += count * (free - projected)
    out[OUT_WAIT] += count * (ready - free)
    out[OUT_ATTENTION] += count * (done - ready)
    out[OUT_FFN] += count * (marks[0, layer, 5] - marks[0, layer, 4])


@uncounted
def _run_layers(
    state: PipelineState,
    times: StepTimes,
    transfer: Int64,
    group: Int64,
    now: int,
    out: Int64,
    marks: Int64,
    busy: Int64,
    seen: Seen,
) -> int:
    """Run all layers from `now`; return the end of the last."""
    _, free, transfer_end, ring, cursor = state
    layers, ranks = group.shape[0], transfer.shape[1]
    passed = 0
    for layer in range(layers):
        if layer < passed:
            continue
        now += times.launch_per_layer
        to = (layer + 1) % layers if times.next_layer else layer
        moves = transfer[group[to]]
        for rank in range(ranks):
            seen.awaited[rank] = transfer_end[rank, layer]
        same = layer + 1 < layers and group[(to + 1) % layers] == group[to]
        same = same and look(ring, cursor, free, now, seen.before)
        now = run_layer(state, times, layer, to, moves, now, marks)
        count = 0
        if same and look(ring, cursor, free, now + times.launch_per_layer, seen.after):
            count = layers_alike(state, times, layer, group, moves, seen, marks)
            pass_over(state, times, layer, count, seen.paces, marks)
            now = marks[0, layer + count, 5]
        _add_up(times, moves, marks, layer, 1 + count, out, busy)
        passed = layer + 1 + count
    return now


@compiled
def run_step(
    state: PipelineState,
    times: StepTimes,
    transfer: Int64,
    group: Int64,
    out: Int64,
    marks: Int64,
) -> None:
    """Advance the streams by one step.

    `transfer` int64[G, R] is the duration of the transfer of each group of equal layers on each
    rank (0: nothing moves), `group` int64[L] the group of each layer. `out` int64[OUT_COLUMNS]
    receives start, end and the busy time of every stage; of background stages that of the rank
    which is longest at it. `marks` int64[R, L, MARKS] receives the start and end of the
    six per-layer stages: qkv, attention, output_ffn, prediction, selection, transfer.
    """
    scalars = state.scalars
    ranks, layers = transfer.shape[1], group.shape[0]
    busy = np.zeros(STREAMS * ranks, dtype=np.int64)
    for column in range(OUT_COLUMNS):
        out[column] = 0
    now = scalars[NOW]
    out[OUT_START] = now
    done = run_linear(state, times, now, times.prefill)
    out[OUT_PREFILL] = done - now
    now = _run_layers(state, times, transfer, group, done, out, marks, busy, nothing_seen(ranks))
    out[OUT_LAUNCH] = times.launch_per_layer * layers + times.launch_per_step
    done = run_own(state, times, now, times.lm_head, LM_HEAD)
    out[OUT_LM_HEAD] = done - now
    now = run_own(state, times, done, times.draft, DRAFT)
    out[OUT_DRAFT] = now - done
    joined = now
    for rank in range(ranks):
        if times.join:
            joined = max(joined, drain(state, times, rank, now, busy, marks))
        base = STREAMS * rank
        out[OUT_PREDICTION] = max(out[OUT_PREDICTION], busy[base + PREDICTION])
        out[OUT_SELECTION] = max(out[OUT_SELECTION], busy[base + SELECTION])
        out[OUT_TRANSFER] = max(out[OUT_TRANSFER], busy[base + TRANSFER])
    out[OUT_WAIT] += joined - now
    # New KV of the step before must be in host memory before its blocks can be evicted.
    now = max(joined + times.launch_per_step, scalars[D2H_STEP_END])
    scalars[D2H_FREE] = max(scalars[D2H_FREE], now) + times.d2h
    scalars[D2H_STEP_END] = scalars[D2H_FREE] if times.d2h > 0 else 0
    scalars[NOW] = now
    out[OUT_END] = now
