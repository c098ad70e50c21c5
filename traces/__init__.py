"""Shipped attention traces, each with its origin in its header."""
