"""Residency: which block of which head is in HBM, step by step."""

from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.residency.simulate import simulate, simulate_path
from oasis_sim.residency.stats import StatsRow, trace_stats
from oasis_sim.residency.walk import WalkMoves, WalkTable, build_walk, walk_moves

__all__ = [
    "Moves",
    "ResidencyLog",
    "ResidencyRule",
    "StatsRow",
    "StepPath",
    "WalkMoves",
    "WalkTable",
    "build_walk",
    "simulate",
    "simulate_path",
    "trace_stats",
    "walk_moves",
]
