"""Compiled code: used until its source changes, and what it may do with arrays."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from numba.core.errors import NumbaError

from oasis_sim import compiled
from oasis_sim.compiled import PACKAGE, sources, uncounted
from oasis_sim.engine.pipeline import run_step
from oasis_sim.engine.state import (
    OUT_COLUMNS,
    OUT_END,
    OUT_START,
    StepTimes,
    new_marks,
    new_state,
)
from oasis_sim.engine.streams import RATE_ONE

Int64 = npt.NDArray[np.int64]


def test_sources_are_followed_through_imports() -> None:
    """The compiled steps depend on the layer, its streams and the columns of its state."""
    found = {
        path.relative_to(PACKAGE).as_posix() for path in sources(PACKAGE / "engine/stretch.py")
    }
    assert {"engine/stretch.py", "engine/pipeline.py", "engine/layer.py"} < found
    assert {"engine/streams.py", "engine/state.py", "compiled.py"} < found


def test_a_change_of_an_imported_module_is_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are kept by the text of all modules; those of an older text are dropped."""
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    caller, callee = tmp_path / "caller.py", tmp_path / "callee.py"
    caller.write_text("from oasis_sim.callee import value\n")
    callee.write_text("value = 1\n")
    cache = tmp_path / "cache"
    first = compiled._place.__wrapped__(caller, str(cache))
    assert first == compiled._place.__wrapped__(caller, str(cache))
    first.mkdir(parents=True)
    other = cache / "unrelated"
    other.mkdir()
    callee.write_text("value = 2\n")
    second = compiled._place.__wrapped__(caller, str(cache))
    assert second != first
    assert not first.exists()
    assert other.exists()


def test_uncounted_functions_return_no_arrays() -> None:
    """An array that nobody counts would be freed while it is in use."""

    def views(values: Int64) -> Int64:
        return values[1:]

    with pytest.raises(TypeError, match=r"views returns Int64, not one of None, bool, int"):
        uncounted(views)


def test_uncounted_functions_make_no_arrays() -> None:
    """Numba refuses them when it compiles."""

    def copies(values: Int64) -> int:
        return len(values.copy())

    with pytest.raises(NumbaError, match="NRT required"):
        uncounted(copies)(np.zeros(3, dtype=np.int64))


def test_arrays_given_to_compiled_steps_are_neither_kept_nor_freed() -> None:
    """After many steps as many hold each array as before."""
    state = new_state(layers=6, ranks=2)
    times = StepTimes(
        *(0, 50, 40, 60, 30, 20, 25, 5, 2, 9, 0),
        on_demand=False,
        rates=np.full((3, 3), RATE_ONE // 2, dtype=np.int64),
        join=True,
        covered=RATE_ONE // 3,
    )
    transfer, group = np.array([[300, 10]]), np.zeros(6, dtype=np.int64)
    out, marks = np.zeros(OUT_COLUMNS, dtype=np.int64), new_marks(state)
    arrays = (*state, times.rates, transfer, group, out, marks)
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(100):
        run_step(state, times, transfer, group, out, marks)
    assert [sys.getrefcount(array) for array in arrays] == before
    assert out[OUT_END] > out[OUT_START] > 0
