"""A real model's sparse decode through the GPU kernels: paged keys and values, scan, selection."""
