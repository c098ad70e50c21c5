"""Residency: which block of which head is in HBM, step by step."""
