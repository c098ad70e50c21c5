"""Model shapes: the type, the loader and the built-in models."""

from oasis_sim.model.load import load_model, model_names
from oasis_sim.model.shape import ModelShape

__all__ = ["ModelShape", "load_model", "model_names"]
