"""Sums over the steps of a run: all that a summary needs, without the steps themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


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
