"""What tests of sweeps and plans stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from oasis_sim.trace import save_trace
from tests.strategies import make_trace


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that holds a small trace."""
    monkeypatch.chdir(tmp_path)
    save_trace(make_trace(1, block_tokens=16, prompt=300, stored=12), tmp_path / "small.npz")
    return tmp_path
