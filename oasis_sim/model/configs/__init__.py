"""Configurations of the built-in models, each with its source."""
