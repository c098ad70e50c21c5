"""KV cache schemes as data: the type, the loader and the presets."""

from oasis_sim.scheme.load import load_scheme, scheme_names, with_options
from oasis_sim.scheme.scheme import Scheme

__all__ = ["Scheme", "load_scheme", "scheme_names", "with_options"]
