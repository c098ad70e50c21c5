"""Loops over simulations: grids of runs, and the smallest fleet that meets a target."""
