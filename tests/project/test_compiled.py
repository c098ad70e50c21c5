"""What keeps compiled code from being used after its source has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from oasis_sim import compiled
from oasis_sim.compiled import PACKAGE, sources


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
