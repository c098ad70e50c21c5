"""Hardware profiles: physical limits with sources, and cost models of engines."""

from oasis_sim.curve import Curve
from oasis_sim.hardware.load import load_profile, profile_of, read_profile
from oasis_sim.hardware.override import with_capacities
from oasis_sim.hardware.profile import (
    EngineCosts,
    Gpu,
    HardwareProfile,
    Host,
    Launch,
    LinearEfficiency,
    Link,
    Prefill,
    Selection,
    Slowdown,
    Transport,
)

__all__ = [
    "Curve",
    "EngineCosts",
    "Gpu",
    "HardwareProfile",
    "Host",
    "Launch",
    "LinearEfficiency",
    "Link",
    "Prefill",
    "Selection",
    "Slowdown",
    "Transport",
    "load_profile",
    "profile_of",
    "read_profile",
    "with_capacities",
]
