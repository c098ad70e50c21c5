"""Collect what every step did and turn it into a StepLog at the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.engine import state as p
from oasis_sim.engine.result import BOUNDS, STAGES, StepLog
from oasis_sim.engine.stretch import (
    LOG_CONTEXT,
    LOG_DENSE_CONTEXT,
    LOG_EXTRA,
    LOG_NEEDED,
    LOG_RANKS,
)

# Columns of the batch record that goes with each step.
(
    SPARSE,
    DENSE,
    PREFILL_TOKENS,
    FIRST_TOKENS,
    HBM_BYTES,
    HOST_BYTES,
    D2H_BYTES,
) = range(7)
BATCH_COLUMNS = 7

# A step that waits longer than this share of its length is bound by the transfer.
WAIT_SHARE = 0.02

STAGE_COLUMNS = {
    "qkv": p.OUT_QKV,
    "attention": p.OUT_ATTENTION,
    "output_ffn": p.OUT_FFN,
    "lm_head": p.OUT_LM_HEAD,
    "draft": p.OUT_DRAFT,
    "prediction": p.OUT_PREDICTION,
    "selection": p.OUT_SELECTION,
    "transfer": p.OUT_TRANSFER,
    "launch": p.OUT_LAUNCH,
    "prefill": p.OUT_PREFILL,
    "transfer_wait": p.OUT_WAIT,
}


class StepRecorder:
    """Append the steps of each stretch; `finish` returns them as one StepLog."""

    def __init__(self) -> None:
        self._times: list[npt.NDArray[np.int64]] = []
        self._quality: list[npt.NDArray[np.float64]] = []
        self._batch: list[npt.NDArray[np.int64]] = []
        self.steps = 0

    def add(
        self,
        times: npt.NDArray[np.int64],
        quality: npt.NDArray[np.float64],
        batch: npt.NDArray[np.int64],
    ) -> None:
        """Add n steps: times as `run_stretch` logs them, and quality sums [n, 3].

        `batch` [n, BATCH_COLUMNS] says of bytes those of one GPU.
        """
        self._times.append(times)
        self._quality.append(quality)
        self._batch.append(batch)
        self.steps += len(times)

    def extra_tokens(self) -> int:
        """Return the tokens gained beside one per row and step."""
        return sum(int(times[:, LOG_EXTRA].sum()) for times in self._times)

    def dense_context(self) -> npt.NDArray[np.int64]:
        """Return the tokens that each step's dense rows have in HBM, int64[S]."""
        return np.concatenate([times[:, LOG_DENSE_CONTEXT] for times in self._times])

    def finish(self, block_bytes: int, copies: npt.NDArray[np.int64]) -> StepLog:
        """Return the log; `block_bytes` is the size of one admitted block of one KV head.

        `copies` int64[R] are the GPUs that each rank stands for.
        """
        times = np.concatenate(self._times)
        quality = np.concatenate(self._quality)
        batch = np.concatenate(self._batch)
        sparse = batch[:, SPARSE]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = quality / np.where(sparse > 0, sparse, np.nan)[:, None]
        by_rank, needed = times[:, LOG_RANKS:], times[:, LOG_NEEDED]
        admitted = by_rank @ copies
        return StepLog(
            start_ps=times[:, p.OUT_START],
            end_ps=times[:, p.OUT_END],
            sparse_rows=sparse.astype(np.int32),
            dense_rows=batch[:, DENSE].astype(np.int32),
            prefill_tokens=batch[:, PREFILL_TOKENS],
            context_tokens=times[:, LOG_CONTEXT],
            admitted_blocks=admitted,
            needed_blocks=needed,
            deferred_blocks=needed - admitted,
            h2d_bytes=admitted * block_bytes,
            d2h_bytes=batch[:, D2H_BYTES] * int(copies.sum()),
            network_bytes=np.zeros(len(times), dtype=np.int64),
            hbm_kv_bytes=batch[:, HBM_BYTES],
            host_kv_bytes=batch[:, HOST_BYTES],
            output_tokens=(
                sparse + batch[:, DENSE] + batch[:, FIRST_TOKENS] + times[:, LOG_EXTRA]
            ).astype(np.int32),
            rank_h2d_bytes=by_rank * block_bytes,
            stage_ps=times[:, [STAGE_COLUMNS[name] for name in STAGES]],
            bound=_bound(times),
            overlap=means[:, 0],
            mass=means[:, 1],
            lost_mass=means[:, 2],
        )


def _bound(times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Say what decided the length of each step: prefill, transfer or compute."""
    length = times[:, p.OUT_END] - times[:, p.OUT_START]
    bound = np.full(len(times), BOUNDS.index("compute"), dtype=np.uint8)
    # Where nothing ever moves (Quest), attention waits for scores and top-K alone.
    if times[:, LOG_RANKS:].any():
        bound[times[:, p.OUT_WAIT] > WAIT_SHARE * length] = BOUNDS.index("transfer")
    bound[2 * times[:, p.OUT_PREFILL] > length] = BOUNDS.index("prefill")
    return bound
