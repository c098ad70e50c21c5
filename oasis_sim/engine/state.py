"""What the decode pipeline carries from step to step, and what one step costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.streams import RATE_ONE

# Columns of `PipelineState.scalars`.
NOW, TRANSFER_FREE, PREDICTION_FREE, SELECTION_FREE, D2H_FREE, D2H_STEP_END = range(6)

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
# Where the six per-layer stages of `marks` stand in a step's result, from OUT_QKV on.
LAYER_STAGES = (0, 1, 2, 5, 6, 7)

Int64 = npt.NDArray[np.int64]


class PipelineState(NamedTuple):
    """Carry the streams from one step to the next.

    `scalars` int64[6]: clock and the time at which each stream and the device-to-host link are
    free. `transfer_end` int64[L]: end of the transfer that attention of layer l waits for.
    `ring` int64[3, R, 2]: the last R busy intervals of transfer, prediction and selection;
    `cursor` int64[3, 2]: intervals written so far, and the oldest that may still matter.
    """

    scalars: Int64
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


def new_state(layers: int, start_ps: int = 0) -> PipelineState:
    """Return idle streams at `start_ps` for a model of `layers` layers."""
    ring = np.full((3, 4 * layers + 8, 2), -1, dtype=np.int64)
    return PipelineState(
        scalars=np.full(6, start_ps, dtype=np.int64),
        transfer_end=np.full(layers, start_ps, dtype=np.int64),
        ring=ring,
        cursor=np.zeros((3, 2), dtype=np.int64),
    )
