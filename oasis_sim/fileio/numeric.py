"""Numbers as files spell them: of any length, true, NaN and infinite, tested before use."""

from __future__ import annotations

import sys
from typing import TypeGuard

LARGEST_FLOAT = sys.float_info.max


def is_number(
    value: object, low: float = -LARGEST_FLOAT, high: float = LARGEST_FLOAT
) -> TypeGuard[int | float]:
    """Tell whether a value is a number from low to high: no boolean, no NaN, no infinity.

    A comparison is exact for integers of any length, where float() and math.isfinite() raise
    OverflowError: ask here before either.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return max(low, -LARGEST_FLOAT) <= value <= min(high, LARGEST_FLOAT)
