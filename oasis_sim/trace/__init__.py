"""Attention traces: the type, its files and their checks."""

from oasis_sim.trace.mass import MASS_CODE, decode_mass, encode_mass
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace

__all__ = ["MASS_CODE", "NO_BLOCK", "AttentionTrace", "decode_mass", "encode_mass"]
