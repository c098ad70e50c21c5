"""Measure real transfers between two processes or hosts, and fit a network profile to them."""
