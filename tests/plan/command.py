"""Run `oasis-sim plan` in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oasis_sim.cli.main import main


def plan(*arguments: str) -> int:
    """Plan in this process."""
    return main(["plan", "--workers", "1", "--quiet", *arguments])


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON of a plan that must be found."""
    assert plan(*arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)
