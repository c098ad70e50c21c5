"""What the decode pipeline carries from step to step, and what one step costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.streams import RATE_ONE, STREAMS

# Columns of `PipelineState.scalars`.
NOW, D2H_FREE, D2H_STEP_END = range(3)

# Columns of a step's result (see `run_step`).
(
    OUT_START,
    OUT_END,
    OUT_QKV,
    OUT_ATTENTION,
    OUT_FFN,
    OUT_LM_HEAD,
    OUT_DRAFT,
    OUT_PREDICTION,
    OUT_SELECTION,
    OUT_TRANSFER,
    OUT_LAUNCH,
    OUT_PREFILL,
    OUT_WAIT,
) = range(13)
OUT_COLUMNS = 13
MARKS = 12

Int64 = npt.NDArray[np.int64]

# Rows of `StepTimes.own`, and what stands there for stages that are slowed as linear layers.
LM_HEAD, DRAFT, QKV = 0, 1, 2
AS_LINEAR = np.full((3, STREAMS), -1, dtype=np.int64)


class PipelineState(NamedTuple):
    """Carry the streams of R ranks (GPUs that work together) from one step to the next.

    `scalars` int64[3]: the clock, and two times of the device-to-host link, alike on all ranks.
    `free` int64[3 R]: when each lane is free: transfer, prediction and selection of each rank.
    `transfer_end` int64[R, L]: end of the transfer that attention of layer l waits for. `ring`
    int64[3 R, N, 2]: the last N busy intervals of each lane, N a power of two so that places in it
    need no division; `cursor` int64[3 R, 2]: intervals written so far, and the oldest that may
    still matter.
    """

    scalars: Int64
    free: Int64
    transfer_end: Int64
    ring: Int64
    cursor: Int64


class StepTimes(NamedTuple):
    """Give the durations of one step, in picoseconds; every layer is alike but for its transfer.

    `rates` int64[3, 3]: fixed-point progress of linear layers, attention and prediction while
    transfer, prediction or selection is busy.
    `on_demand` puts prediction, selection and transfer of a layer between its QKV and attention.
    With `next_layer` a layer's transfer is for the layer after it, in the same step. `correction`
    is the fixed-point share of a layer's transfer that its own attention waits for.
    With `join` a step ends when all its streams have (one CUDA graph per step); without, its
    transfers may reach into the next step. `idle` is the fixed-point share of its time that the
    rest of a transfer takes once a joined step's other work is done. `covered` is the progress of
    linear layers beside a transfer that is busy all the time (0: as beside one that is not).
    `collective` is a layer's time of collectives that keep their pace beside transfers, half of it
    before output and FFN and the rest after them.
    `own` int64[3, 3] is the progress of LM head, draft model and QKV while transfer, prediction or
    selection is busy (-1: as linear layers, and `covered` as they are).
    `inline` puts prediction between QKV and attention, as a part of the foreground (`on_demand`
    does so anyway).
    """

    prefill: int
    qkv: int
    attention: int
    output_ffn: int
    lm_head: int
    draft: int
    prediction: int
    selection: int
    launch_per_layer: int
    launch_per_step: int
    d2h: int
    on_demand: bool
    rates: Int64
    join: bool
    next_layer: bool = False
    correction: int = 0
    idle: int = RATE_ONE
    covered: int = 0
    collective: int = 0
    inline: bool = False
    own: Int64 = AS_LINEAR


def new_state(layers: int, ranks: int = 1) -> PipelineState:
    """Return idle streams at time 0 for a model of `layers` layers on `ranks` GPUs."""
    return PipelineState(
        scalars=np.zeros(3, dtype=np.int64),
        free=np.zeros(STREAMS * ranks, dtype=np.int64),
        transfer_end=np.zeros((ranks, layers), dtype=np.int64),
        ring=np.full((STREAMS * ranks, 1 << (4 * layers + 8).bit_length(), 2), -1, dtype=np.int64),
        cursor=np.zeros((STREAMS * ranks, 2), dtype=np.int64),
    )


def new_marks(state: PipelineState) -> Int64:
    """Return an empty record for the intervals of one step, int64[R, L, MARKS]."""
    return np.zeros((*state.transfer_end.shape, MARKS), dtype=np.int64)
