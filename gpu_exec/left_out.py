"""Simulate a run again without its all-reduces, for a replay that leaves them out.

Their time cannot be taken off a step afterwards: where the link decides, a step does not get
shorter by what they took.
"""

from __future__ import annotations

import math
from dataclasses import replace

from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed
from oasis_sim.hardware import HardwareProfile


def without_all_reduces(scenario: Scenario) -> Schedule:
    """Return the schedule of a scenario on GPUs whose all-reduces take no time.

    Shorter steps may move other units than those of the scenario as it is.
    """
    free = free_collectives(scenario.profile, scenario.engine_name)
    schedule = simulate(replace(scenario, profile=free)).schedule
    if schedule is None:
        raise RunFailed("the run without all-reduces gave no schedule")
    return schedule


def free_collectives(profile: HardwareProfile, engine: str) -> HardwareProfile:
    """Return a profile on which an engine's all-reduces take no time."""
    link = replace(profile.gpu_link, usable_bytes_per_s=math.inf)
    costs = replace(profile.engine(engine), collective_ps=0)
    return replace(profile, nvlink=link, engines={**profile.engines, engine: costs})
