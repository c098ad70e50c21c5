"""Which steps of a trace a walk visits, and in which order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.trace.trace import AttentionTrace

LEAST_STEPS = 3


def walk_steps(trace_steps: int) -> NDArray[np.int32]:
    """Return the trace step of each walk step of one period, int32[W]."""
    forward = np.arange(1, trace_steps, dtype=np.int32)
    return np.concatenate([forward, forward[-2:0:-1]])


def visited_steps(accepted: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the steps that a trace goes through when accepted drafts are kept.

    `accepted` uint8[T]: where a step's draft is accepted, its token needs no step of its own.
    """
    steps, step = [], 0
    while step < len(accepted):
        steps.append(step)
        step += 1 + int(accepted[step] != 0)
    return np.array(steps, dtype=np.int32)


def check_steps(trace: AttentionTrace, visited: int) -> None:
    """Refuse a walk of too few steps."""
    if visited < LEAST_STEPS:
        raise InputError(
            f"holds {visited} steps to walk through",
            file=trace.name,
            field="steps",
            fix=f"a run needs a trace of {LEAST_STEPS} or more",
        )
