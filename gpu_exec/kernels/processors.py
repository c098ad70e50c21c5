"""From which processor the host submits copies: a thread is kept to the one that is fastest now.

Submission costs the host 0.5 us a unit, and almost twice that on some processors for a while: those
whose core others use, as far as a guest can tell (docs/gpu-kernels.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def on_processor(processor: int | None) -> Iterator[None]:
    """Keep the calling thread to one processor meanwhile; None, or one it may not use: free."""
    before = os.sched_getaffinity(0)
    if processor not in before or processor is None:
        yield
        return
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def candidates(lane: int, lanes: int) -> tuple[int, ...]:
    """Return the processors for the thread of one of `lanes` devices: no two share one.

    With fewer processors than devices they do.
    """
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(allowed[lane::lanes]) or tuple(allowed)


def fastest(processors: Iterable[int], measure: Callable[[], float]) -> int:
    """Return the processor on which `measure`, run there, gives the least."""

    def on(processor: int) -> float:
        with on_processor(processor):
            return measure()

    return min(processors, key=on)
