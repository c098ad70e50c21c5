"""What a hardware profile may say: least and largest of each kind of number.

The bounds are far from any machine. They keep out zeros that would be divided by, and values that
only a slip of the pen explains (an hour between two kernels).
"""

from __future__ import annotations

BANDWIDTH = ("1 MB/s", "1 PB/s")
FLOPS = ("1 GFLOP/s", "1000 PFLOP/s")
POWER = ("1 W", "100 kW")
HBM = ("1 MB", "1 PB")
SIZE = ("0 B", "1 PB")
CURVE_SIZE = ("1 B", "1 PB")
LATENCY = ("0 ps", "1 s")
"""Of a link, and of a collective operation."""
STEP_TIME = ("0 ps", "10 s")
"""Once per step."""
LAYER_TIME = ("0 ps", "1 s")
"""Once per layer or request."""
KERNEL_TIME = ("0 ps", "10 ms")
"""Between two kernels, or per token and layer."""
