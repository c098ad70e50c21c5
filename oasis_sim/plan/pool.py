"""Run jobs on several processes; their order of ending is all that may differ."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from oasis_sim.errors import RunFailed

J = TypeVar("J")
R = TypeVar("R")

SECONDS_BETWEEN_LOOKS = 0.5

# The only state of a worker process: what its initialiser made, with whatever it has loaded.
_handlers: list[Callable[[Any], Any]] = []


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    make_handler: Callable[[], Callable[[J], R]], jobs: Sequence[J], workers: int
) -> Generator[tuple[int, R], None, None]:
    """Yield `(index, result)` of each job as it ends.

    `make_handler` makes, once per process, the function that does a job. With one worker
    everything runs in this process, in order. Closing the iterator ends the workers.
    """
    if workers <= 1 or len(jobs) <= 1:
        handler = make_handler()
        for index, job in enumerate(jobs):
            yield index, handler(job)
        return
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(
        min(workers, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(make_handler, os.getpid()),
    )
    try:
        futures = _submit(executor, jobs)
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise RunFailed(
            "a worker process was ended from outside, perhaps for want of memory; "
            "run the command again with fewer --workers: what is done is kept"
        ) from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
            process.join()


def _submit(executor: ProcessPoolExecutor, jobs: Sequence[Any]) -> dict[Future[Any], int]:
    """Hand all jobs over; the processes are started deaf to Ctrl-C, which is for the parent."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    old = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    try:
        return {executor.submit(_do, job): index for index, job in enumerate(jobs)}
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, old)


def _start_worker(make_handler: Callable[[], Callable[[Any], Any]], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _handlers[:] = [make_handler()]


def _end_with(parent: int) -> None:
    """End this process when its parent is gone (killed, it cannot say so)."""
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _do(job: Any) -> Any:
    return _handlers[0](job)
