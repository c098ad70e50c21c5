"""Simulate decoding with the KV cache in host memory and its working set in HBM."""

__version__ = "0.1.0"
