"""Tests of published numbers and of the simulations beside them."""
