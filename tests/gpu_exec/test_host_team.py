"""The team of host copies, compiled for the CPU: every move once, in its layer, not too early."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.build import build_selection_for_cpu

pytestmark = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the team"
)
RUNS = 3
NEVER = -1
REFUSED = 77


def share(
    counts: list[int], most: int, members: int, lag: int, fail_at: int
) -> tuple[int, list[int], int]:
    """Run the compiled team: its code, how often each move was submitted, parts in all."""
    offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    taken = np.zeros(max(1, int(offset[-1])), dtype=np.int32)
    parts = np.zeros(members, dtype=np.int32)
    code = ctypes.CDLL(str(build_selection_for_cpu())).oasis_team_cpu(
        ctypes.c_void_p(offset.ctypes.data),
        len(counts),
        ctypes.c_longlong(most),
        members,
        lag,
        RUNS,
        ctypes.c_longlong(fail_at),
        ctypes.c_void_p(taken.ctypes.data),
        ctypes.c_void_p(parts.ctypes.data),
    )
    return int(code), taken[: int(offset[-1])].tolist(), int(parts.sum())


@given(
    counts=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    most=st.integers(1, 70),
    members=st.integers(1, 4),
    lag=st.integers(0, 30),
)
def test_every_move_is_submitted_once_in_every_run(
    counts: list[int], most: int, members: int, lag: int
) -> None:
    """However late layers are released, each part is submitted once and names its own layer.

    A part that came before the release of its layer, or crossed a layer, would count negative.
    """
    code, taken, parts = share(counts, most, members, lag, NEVER)
    assert code == 0
    assert taken == [RUNS] * sum(counts)
    assert parts == RUNS * sum(-(-count // most) for count in counts)


@given(counts=st.lists(st.integers(1, 90), min_size=2, max_size=5), members=st.integers(1, 4))
def test_a_refused_part_ends_the_run(counts: list[int], members: int) -> None:
    """The error of a part comes back, nothing hangs, and nothing is submitted twice."""
    code, taken, _ = share(counts, 16, members, 1, counts[0])
    assert code == REFUSED
    assert set(taken) <= {0, 1}
