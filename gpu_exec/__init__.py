"""Execute a simulated transfer schedule for real: kernels, executors, calibration, validation.

Importing this package imports neither torch nor triton; modules that need them import them inside.
"""
