"""Machines that are too slow end in a message, not in numbers that have overflowed."""

from __future__ import annotations

import dataclasses

import pytest

from oasis_sim.engine import simulate
from oasis_sim.errors import RunFailed
from tests.engine.scenarios import card, scenario


def test_a_step_of_hours_is_refused() -> None:
    """The rate of HBM is a factor of a billion too low: said before anything overflows."""
    slow = card(8 * 10**9)
    slow = dataclasses.replace(slow, gpu=dataclasses.replace(slow.gpu, hbm_bytes_per_s=1000.0))
    with pytest.raises(RunFailed, match=r"one step could take [0-9,]+ s on profile"):
        simulate(scenario(profile=slow))
