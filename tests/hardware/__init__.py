"""Tests of hardware profiles."""
