"""Workloads: the type, request files of named formats, closed loops and Poisson arrivals."""

from oasis_sim.workload.formats import FORMATS
from oasis_sim.workload.load import load_workload
from oasis_sim.workload.synthetic import closed_loop, poisson
from oasis_sim.workload.workload import Workload

__all__ = ["FORMATS", "Workload", "closed_loop", "load_workload", "poisson"]
