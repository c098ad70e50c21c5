"""Sums over the steps of a run: all that a summary needs, without the steps themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from oasis_sim.engine.result import StepLog

IntArray = npt.NDArray[np.int64]
BOUND_KINDS = 3


@dataclass(frozen=True, eq=False)
class StepTotals:
    """Hold sums, except where a name says otherwise.

    `step_ps` int64[S] and `rows` int32[S] are the length and the rows of each step. `stage_ps`
    int64[stages], `bound_steps` and `bound_ps` int64[bounds] follow STAGES and BOUNDS of
    ``result``; `rank_h2d_bytes` int64[R] are those of one GPU of each rank. `decode_ps` and
    `decode_tokens` are those of steps without prefill. Peaks are the largest values, `end_ps` is
    the end of the last step.
    """

    step_ps: IntArray
    rows: npt.NDArray[np.int32]
    stage_ps: IntArray
    bound_steps: IntArray
    bound_ps: IntArray
    sparse_rows: int
    output_tokens: int
    prefill_tokens: int
    decode_ps: int
    decode_tokens: int
    h2d_bytes: int
    rank_h2d_bytes: IntArray
    d2h_bytes: int
    network_bytes: int
    needed_blocks: int
    admitted_blocks: int
    deferred_blocks: int
    peak_hbm_bytes: int
    peak_host_bytes: int
    end_ps: int

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return len(self.step_ps)

    @property
    def busy_ps(self) -> int:
        """Return the time of all steps."""
        return int(self.step_ps.sum())

    @property
    def most_rows(self) -> int:
        """Return the rows of the largest step."""
        return int(self.rows.max(initial=0))

    @property
    def all_rows(self) -> int:
        """Return the rows of all steps."""
        return int(self.rows.sum(dtype=np.int64))


def fold_steps(steps: StepLog) -> StepTotals:
    """Add up the steps of a log."""
    lengths = steps.end_ps - steps.start_ps
    decoding = (steps.prefill_tokens == 0) & (steps.output_tokens > 0)
    kinds = [steps.bound == kind for kind in range(BOUND_KINDS)]
    return StepTotals(
        step_ps=lengths,
        rows=(steps.sparse_rows + steps.dense_rows).astype(np.int32),
        stage_ps=steps.stage_ps.sum(axis=0),
        bound_steps=np.array([np.count_nonzero(kind) for kind in kinds], dtype=np.int64),
        bound_ps=np.array([lengths[kind].sum() for kind in kinds], dtype=np.int64),
        sparse_rows=int(steps.sparse_rows.sum()),
        output_tokens=int(steps.output_tokens.sum()),
        prefill_tokens=int(steps.prefill_tokens.sum()),
        decode_ps=int(lengths[decoding].sum()),
        decode_tokens=int(steps.output_tokens[decoding].sum()),
        h2d_bytes=int(steps.h2d_bytes.sum()),
        rank_h2d_bytes=steps.rank_h2d_bytes.sum(axis=0),
        d2h_bytes=int(steps.d2h_bytes.sum()),
        network_bytes=int(steps.network_bytes.sum()),
        needed_blocks=int(steps.needed_blocks.sum()),
        admitted_blocks=int(steps.admitted_blocks.sum()),
        deferred_blocks=int(steps.deferred_blocks.sum()),
        peak_hbm_bytes=int(steps.hbm_kv_bytes.max(initial=0)),
        peak_host_bytes=int(steps.host_kv_bytes.max(initial=0)),
        end_ps=int(steps.end_ps[-1]) if len(steps) else 0,
    )


def merge_totals(parts: Sequence[StepTotals]) -> StepTotals:
    """Add up totals; steps stand in the order of the parts."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(StepTotals):
        each = [getattr(part, field.name) for part in parts]
        if field.name in ("step_ps", "rows"):
            values[field.name] = np.concatenate(each)
        elif field.name.startswith("peak_") or field.name == "end_ps":
            values[field.name] = max(each)
        else:
            values[field.name] = sum(each)
    return StepTotals(**values)  # type: ignore[arg-type]
