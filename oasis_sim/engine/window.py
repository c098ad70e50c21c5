"""A few steps in the middle of a run, kept in full: the timeline and the block moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oasis_sim.engine import state as p
from oasis_sim.engine.batch import Job
from oasis_sim.engine.result import Slice
from oasis_sim.engine.stretch import Rows

TIMELINE_STEPS = 3
NO_BOUND = 1 << 62
STAGE_MARKS = (
    ("compute", "qkv", 0),
    ("compute", "attention", 2),
    ("compute", "output_ffn", 4),
    ("prediction", "prediction", 6),
    ("selection", "selection", 8),
    ("transfer", "transfer", 10),
)
INLINE_MARKS = (
    ("compute", "qkv", 0),
    ("compute", "prediction", 6),
    ("compute", "attention", 2),
    ("compute", "output_ffn", 4),
    ("selection", "selection", 8),
    ("transfer", "transfer", 10),
)
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WindowStep:
    """Keep one step of the window: its rows before the step, its stage times and intervals.

    `request` int64[B + D], `context` int64[B + D] (sparse rows first), `walk` int64[B], `times`
    a row of the steps' log, `marks` int64[L, MARKS] those of one rank (see `pipeline.run_step`).
    """

    step: int
    request: Int64
    context: Int64
    walk: Int64
    times: Int64
    marks: Int64


class Window:
    """Record `length` consecutive steps once half of the run's tokens (or steps) are done.

    It opens in a step without prefill, unless none comes until three quarters are done.
    """

    def __init__(self, length: int, expected_tokens: int, max_steps: int | None) -> None:
        self._length = max(length, TIMELINE_STEPS)
        self._after_tokens = expected_tokens // 2
        # A run that is cut short opens its window early enough to fill it.
        self._late_tokens = 3 * expected_tokens // 4
        self._late_steps = None if max_steps is None else max(0, max_steps - self._length)
        self._after_steps = None if self._late_steps is None else self._late_steps // 2
        self.steps: list[WindowStep] = []

    def wants(self, generated: int, step: int, rows: Rows, *, prefill: bool) -> bool:
        """Say whether the coming step belongs to the window."""
        if len(self.steps) >= self._length:
            return False
        if self.steps:
            return True
        if len(rows.context) + len(rows.dense_context) == 0:
            return False
        if self._after_steps is not None and step >= self._after_steps:
            return True
        return generated >= (self._late_tokens if prefill else self._after_tokens)

    def room(self, generated: int, step: int, most_per_step: int) -> int:
        """Return how many steps may run in one go, so that the window does not open too late.

        `most_per_step` tokens may be generated in each. It opens before the last quarter of the
        tokens; of a run that is cut short, in time to be filled.
        """
        if self.steps:
            return NO_BOUND
        left = -(-(self._late_tokens - generated) // most_per_step)
        if self._late_steps is not None:
            left = min(left, self._late_steps - step)
        return max(1, left)

    def record(
        self,
        step: int,
        sparse: Sequence[Job],
        dense: Sequence[Job],
        places: tuple[Int64, Int64, Int64],
        times: Int64,
        marks: Int64,
    ) -> None:
        """Keep a step: `places` are walk, context and dense context before it ran."""
        walk, context, dense_context = places
        request = np.array([job.index for job in (*sparse, *dense)], dtype=np.int64)
        self.steps.append(
            WindowStep(
                step=step,
                request=request,
                context=np.concatenate([context, dense_context]),
                walk=walk,
                times=times.copy(),
                marks=marks,
            )
        )


def slices(
    steps: Sequence[WindowStep], row_bytes: int, d2h_ps: Callable[[int], int], *, inline: bool
) -> tuple[Slice, ...]:
    """Draw the first steps of the window as intervals of streams and links.

    `row_bytes` are the bytes of new KV that go to the host per sparse row and step, `d2h_ps`
    prices such a copy. With `inline` prediction stands in the foreground.
    """
    found: list[Slice] = []
    for step in steps[:TIMELINE_STEPS]:
        found.extend(_stage_slices(step, INLINE_MARKS if inline else STAGE_MARKS))
        found.extend(_tail_slices(step))
        moved = row_bytes * len(step.walk)
        if moved:
            start = int(step.times[p.OUT_END])
            name = f"new KV of step {step.step}"
            found.append(Slice("pcie_d2h", name, start, start + d2h_ps(moved), {"bytes": moved}))
    return tuple(found)


def _stage_slices(step: WindowStep, stages: Sequence[tuple[str, str, int]]) -> list[Slice]:
    found = []
    for layer, marks in enumerate(step.marks.tolist()):
        for track, stage, column in stages:
            start, end = marks[column], marks[column + 1]
            if end > start:
                args: dict[str, int | str] = {"step": step.step, "layer": layer, "stage": stage}
                name = f"{stage} {layer}"
                found.append(Slice(track, name, start, end, args))
                if stage == "transfer":
                    found.append(Slice("pcie_h2d", name, start, end, args))
    return found


def _tail_slices(step: WindowStep) -> list[Slice]:
    """Draw prefill before the layers, LM head and draft forward after them."""
    found = []
    times = step.times
    start = int(times[p.OUT_START])
    args: dict[str, int | str] = {"step": step.step}
    if times[p.OUT_PREFILL] > 0:
        end = start + int(times[p.OUT_PREFILL])
        found.append(Slice("compute", "prefill", start, end, {**args, "stage": "prefill"}))
    now = int(step.marks[-1, 5])
    for stage, column in (("lm_head", p.OUT_LM_HEAD), ("draft", p.OUT_DRAFT)):
        end = now + int(times[column])
        if end > now:
            found.append(Slice("compute", stage, now, end, {**args, "stage": stage}))
        now = end
    return found
