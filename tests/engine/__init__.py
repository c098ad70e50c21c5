"""Tests of the timing engine."""
