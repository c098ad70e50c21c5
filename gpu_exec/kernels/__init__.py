"""GPU kernels of one decode step, their host wrappers and plain references."""
