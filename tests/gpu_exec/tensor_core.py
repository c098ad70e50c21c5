"""A warp's tensor-core instructions lane by lane, after the PTX ISA (mma.m16n8k16, movmatrix).

Registers are arrays [32 lanes, ...]; 16-bit elements are kept as floats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LANE = np.arange(32)


def mma(c: Array, a: Array, b: Array) -> Array:
    """Return C + A B: c [32, 4], a [32, 8] (4 registers of 2), b [32, 4] (2 registers of 2)."""
    full_a, full_b = np.zeros((16, 16)), np.zeros((16, 8))
    for register in range(4):
        row = LANE // 4 + 8 * (register % 2)
        col = 2 * (LANE % 4) + 8 * (register // 2)
        for half in range(2):
            full_a[row, col + half] = a[:, 2 * register + half]
    for register in range(2):
        k = 2 * (LANE % 4) + 8 * register
        for half in range(2):
            full_b[k + half, LANE // 4] = b[:, 2 * register + half]
    product = full_a @ full_b
    out = c.copy()
    for i in range(4):
        out[:, i] += product[LANE // 4 + 8 * (i // 2), 2 * (LANE % 4) + i % 2]
    return out


def transpose8(x: Array) -> Array:
    """Return movmatrix.trans of an 8 x 8 matrix held as x [32, 2]."""
    full = np.zeros((8, 8))
    for half in range(2):
        full[LANE // 4, 2 * (LANE % 4) + half] = x[:, half]
    return np.stack([full.T[LANE // 4, 2 * (LANE % 4) + half] for half in range(2)], axis=1)


def operand_b(columns: Array, step: int) -> Array:
    """Return operand B of k-step ``step``: columns [n <= 8, k]; missing columns are zero."""
    out = np.zeros((32, 4))
    for register in range(2):
        for half in range(2):
            k = 16 * step + 2 * (LANE % 4) + 8 * register + half
            n = LANE // 4
            inside = n < len(columns)
            out[inside, 2 * register + half] = columns[n[inside], k[inside]]
    return out
