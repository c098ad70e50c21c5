"""The packer of host copies, compiled for the CPU: every unit once, in order, never too early."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.build import build_selection_for_cpu

pytestmark = pytest.mark.skipif(
    build_selection_for_cpu() is None, reason="no C++ compiler to build the packer"
)
RUNS = 3


@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    unit_bytes=st.sampled_from([64, 4096, 8192]),
    threads=st.integers(1, 4),
    piece_units=st.integers(1, 20),
    slots=st.integers(1, 4),
    lag=st.integers(0, 12),
)
def test_packed_units_are_those_of_the_list(
    counts: list[int], unit_bytes: int, threads: int, piece_units: int, slots: int, lag: int
) -> None:
    """A device that releases layers late and reads pieces late still finds the list's units.

    Host units hold their contents only from the release of their layer on, and a piece is read
    when the device says that its slot is free: what was packed too early or over it is wrong.
    """
    offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    moves = int(offset[-1])
    rng = np.random.default_rng(len(counts) + moves)
    source = rng.permutation(2 * moves + 1)[:moves].astype(np.int64)
    contents = rng.integers(1, 256, (2 * moves + 1, unit_bytes), dtype=np.uint8)
    landing = np.zeros((RUNS * moves, unit_bytes), dtype=np.uint8)
    code = pack(
        np.zeros_like(contents),
        contents,
        offset,
        source,
        ctypes.c_longlong(unit_bytes),
        len(counts),
        threads,
        ctypes.c_longlong(piece_units * unit_bytes),
        slots,
        lag,
        RUNS,
        landing,
    )
    assert code == 0
    for found in np.split(landing, RUNS):
        assert np.array_equal(found, contents[source])


def pack(*arguments: object) -> int:
    """Call the compiled packer; arrays go by address."""
    converted = [
        ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else value
        for value in arguments
    ]
    return int(ctypes.CDLL(str(build_selection_for_cpu())).oasis_pack_cpu(*converted))
