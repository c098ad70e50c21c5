"""Which part of a closed loop is its steady state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.result import RequestLog, StepLog
from oasis_sim.errors import RunFailed


def full_steps(steps: StepLog, requests: int, *, sparse: bool = True) -> npt.NDArray[np.bool_]:
    """Mark the steps that decode all of `requests` requests and prefill nothing, bool[S].

    With `sparse` every request has its KV in host memory by then. Raises RunFailed when no step
    does, because the requests do not fit together.
    """
    rows = steps.sparse_rows if sparse else steps.dense_rows
    full = np.asarray((steps.prefill_tokens == 0) & (rows == requests), dtype=np.bool_)
    if not full.any():
        most = int(rows.max()) if len(rows) else 0
        raise RunFailed(
            f"at most {most} of {requests} requests decode together on this hardware; use fewer "
            "requests, shorter contexts, or a profile with more HBM"
        )
    return full


def steady_window(requests: RequestLog, concurrency: int, filling: int = 0) -> tuple[int, int]:
    """Return the times in ps between which the loop is full, whole request lives apart.

    Equal requests that start together stay together, so that the load comes in waves; a window
    that cuts through a wave sees too much or too little prefill. It begins when the first request
    ends (where the first `filling` requests are shorter, so that they end one by one: when the last
    of them has); the next to be admitted lives until the first wave is over, and so on, as long as
    requests wait or `concurrency` of them are in the system. Raises RunFailed for a short loop.
    """
    admitted = requests.admitted_ps[requests.finish_ps >= 0]
    finish = requests.finish_ps[requests.finish_ps >= 0]
    if len(finish) <= concurrency:
        raise RunFailed(f"{len(finish)} requests ended; a steady rate needs over {concurrency}")
    begin = end = int(requests.finish_ps[:filling].max() if filling else finish.min())
    full_until = max(int(admitted.max()), int(np.sort(finish)[len(finish) - concurrency]))
    while True:
        later = np.flatnonzero(admitted >= end)
        if len(later) == 0:
            break
        following = int(finish[later[np.argmin(admitted[later])]])
        if following > full_until:
            break
        end = following
    if end == begin:
        raise RunFailed("the closed loop is too short for a steady state; use more requests")
    return begin, end
