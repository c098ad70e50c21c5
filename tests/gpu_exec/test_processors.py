"""Where the host submits copies from: threads are kept to processors, and let go again."""

from __future__ import annotations

import os
import threading

import pytest

from gpu_exec.kernels.processors import candidates, fastest, on_processor


def test_a_thread_is_kept_and_let_go() -> None:
    """Inside it may use one processor, afterwards those of before, also when the work fails."""
    before = os.sched_getaffinity(0)
    with on_processor(min(before)):
        assert {min(before)} == os.sched_getaffinity(0)
    assert before == os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), on_processor(min(before)):
        raise ZeroDivisionError
    assert before == os.sched_getaffinity(0)


@pytest.mark.parametrize("processor", [None, 1 << 20])
def test_without_a_processor_it_stays_free(processor: int | None) -> None:
    """None and one that the thread may not use change nothing."""
    before = os.sched_getaffinity(0)
    with on_processor(processor):
        assert before == os.sched_getaffinity(0)


def test_other_threads_stay_where_they_are() -> None:
    """Only the calling thread is moved."""
    found: list[set[int]] = []
    before = os.sched_getaffinity(0)
    ready, seen = threading.Event(), threading.Event()

    def look() -> None:
        ready.wait()
        found.append(os.sched_getaffinity(0))
        seen.set()

    thread = threading.Thread(target=look)
    thread.start()
    with on_processor(min(before)):
        ready.set()
        seen.wait()
    thread.join()
    assert [before] == found


def test_the_fastest_is_measured_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each processor is timed while the thread is on it; the least time wins."""
    place = [{3, 5, 8, 9}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: place[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, mask: place.append(set(mask)))
    times = {3: 0.9, 5: 0.5, 8: 0.51, 9: 1.0}

    def measure() -> float:
        (here,) = place[-1]
        return times[here]

    assert 5 == fastest((3, 5, 8, 9), measure)
    assert {3, 5, 8, 9} == place[-1]


@pytest.mark.parametrize("lanes", [1, 2, 3, 64])
def test_devices_do_not_share_processors(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processors are dealt out; with more devices than processors each may use all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 7})
    parts = [candidates(lane, lanes) for lane in range(lanes)]
    assert all(parts)
    if lanes <= 5:
        assert [0, 2, 4, 6, 7] == sorted(sum(parts, ()))
