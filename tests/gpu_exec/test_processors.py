"""Where the host submits copies from: a thread moves on from slow processors, and is let go."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import pytest

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.kernels.abi import Pace
from gpu_exec.kernels.processors import candidates

needs_compiler = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build it"
)
ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("lanes", [1, 2, 3, 64])
def test_devices_do_not_share_processors(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processors are dealt out; with more devices than processors each may use all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 7})
    parts = [candidates(lane, lanes) for lane in range(lanes)]
    assert all(parts)
    if lanes <= 5:
        assert [0, 2, 4, 6, 7] == sorted(sum(parts, ()))


def moved(pace: Pace, us: Sequence[float], processors: Sequence[int] = ALLOWED) -> list[int]:
    """Return the processor after each part of these times."""
    path = build_selection_for_cpu()
    assert path is not None
    library = ctypes.CDLL(str(path))
    array = (ctypes.c_int * len(processors))(*processors)
    places = (ctypes.c_int * len(us))()
    times = (ctypes.c_double * len(us))(*us)
    library.oasis_move_thread(array, len(processors), ctypes.byref(pace), times, len(us), places)
    return list(places)


@needs_compiler
def test_a_fast_thread_stays() -> None:
    """Times that vary by less than the bound leave it where it is; afterwards it is free again."""
    pace = Pace(best=0.0, place=-1, parts=0)
    assert {ALLOWED[0]} == set(moved(pace, [0.5, 0.55, 0.6, 0.5, 0.62, 0.5] * 4))
    assert (0, pytest.approx(0.5)) == (pace.place, pace.best)
    assert ALLOWED == sorted(os.sched_getaffinity(0))


@needs_compiler
@pytest.mark.skipif(len(ALLOWED) < 2, reason="one processor here")
def test_a_slow_thread_moves_on() -> None:
    """After four parts at most one move; the place is remembered by the next call."""
    pace = Pace(best=0.0, place=-1, parts=0)
    assert [ALLOWED[0]] * 5 == moved(pace, [0.5] * 5)
    places = moved(pace, [0.9] + [0.5] * 3)
    assert [ALLOWED[1]] * 4 == places
    assert 1 == pace.place
    assert [ALLOWED[1]] * 2 == moved(pace, [0.5] * 2)


@needs_compiler
def test_where_everything_is_slow_it_settles() -> None:
    """A pace that no processor reaches any more is forgotten, and moving stops."""
    pace = Pace(best=0.5, place=0, parts=0)
    moved(pace, [0.9] * 400)
    assert pace.best > 0.9 / 1.3
    place = pace.place
    moved(pace, [0.9] * 50)
    assert place == pace.place


@needs_compiler
@pytest.mark.parametrize("processors", [(), (1 << 9,)])
def test_without_a_processor_it_stays_free(processors: tuple[int, ...]) -> None:
    """None, or one that does not exist, binds nothing."""
    pace = Pace(best=0.0, place=-1, parts=0)
    assert set(moved(pace, [0.5, 0.9, 0.9], processors)) <= set(ALLOWED)
    assert ALLOWED == sorted(os.sched_getaffinity(0))
    assert -1 == pace.place
