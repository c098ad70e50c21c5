"""Attention traces: the type, its files and their checks."""

from oasis_sim.trace.files import load_trace, read_trace, save_trace
from oasis_sim.trace.mass import MASS_CODE, decode_mass, encode_mass
from oasis_sim.trace.part import select_part
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace

__all__ = [
    "MASS_CODE",
    "NO_BLOCK",
    "AttentionTrace",
    "decode_mass",
    "encode_mass",
    "load_trace",
    "read_trace",
    "save_trace",
    "select_part",
]
