"""Values of a step in JSON lines: what they are, and how lists become arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.trace.build import PREFIXES

UNKNOWN_TOKEN = -1


def flat_keys(step: dict[str, Any]) -> dict[str, Any]:
    """Accept ``"accepted": {NAME: 1}`` as well as ``"accepted.NAME": 1``."""
    flat: dict[str, Any] = {}
    for key, value in step.items():
        if key in PREFIXES and isinstance(value, dict):
            flat |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    return flat


def is_token(value: object) -> bool:
    """Tell whether a value is a token id, or -1 for an unknown one."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and UNKNOWN_TOKEN <= value < 1 << 31
    )


def holds_truth(value: object) -> bool:
    """Tell whether true or false stands anywhere in nested values."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, bool):
            return True
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
    return False


def rectangle(value: Any, fill: int) -> Any:
    """Fill up lists [layer][head][block] of unequal length; leave anything else as it is."""
    if not is_grid(value):
        return value
    width = max((len(row) for heads in value for row in heads), default=0)
    if all(len(row) == width for heads in value for row in heads):
        return value
    return [[row + [fill] * (width - len(row)) for row in heads] for heads in value]


def is_grid(value: Any) -> bool:
    """Tell whether a value is a list of lists of lists."""
    return isinstance(value, list) and all(
        isinstance(heads, list) and all(isinstance(row, list) for row in heads) for heads in value
    )


def stack(rows: list[NDArray[Any]], width: int, fill: int) -> NDArray[Any]:
    """Stack the steps, each filled up to the longest."""
    if rows[0].ndim == 0:
        return np.stack(rows)
    width = max(width, *(row.shape[2] for row in rows))
    found = np.full((len(rows), *rows[0].shape[:2], width), fill, dtype=rows[0].dtype)
    for step, row in enumerate(rows):
        found[step, :, :, : row.shape[2]] = row
    return found


def filled_cells(value: Any) -> int:
    """Return the numbers that lists [layer][head][block] hold once they are filled up."""
    if not is_grid(value):
        return 0
    rows = [len(row) for heads in value for row in heads]
    return len(rows) * max(rows, default=0)
