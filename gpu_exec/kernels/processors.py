"""Which processors the threads that submit copies may use (see `csrc/processors.h`)."""

from __future__ import annotations

import os


def candidates(lane: int, lanes: int) -> tuple[int, ...]:
    """Return the processors for the thread of one of `lanes` devices: no two share one.

    With fewer processors than devices they do.
    """
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(allowed[lane::lanes]) or tuple(allowed)
