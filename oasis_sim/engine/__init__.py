"""When everything happens: cost models, the step pipeline, the serving loop."""

from oasis_sim.engine.result import RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import simulate

__all__ = ["RunResult", "Scenario", "simulate"]
