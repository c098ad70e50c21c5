"""Independent fp64 and plain-Python oracles of the kernels; they share no code with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass
class PairState:
    """Residency of one (request, KV head): slot -> block, block -> stamp."""

    slots: list[int]
    stamps: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PairDecision:
    """What one selection decided: needed blocks, (block, slot) admitted in order, attended."""

    needed: list[int]
    admitted: list[tuple[int, int]]
    attended: list[int]


def select_oracle(
    scores: Sequence[float], state: PairState, chosen: int, cap: int, step: int
) -> PairDecision:
    """Apply the residency rule to candidate scores (index = block) and update ``state``."""
    order = sorted(range(len(scores)), key=lambda b: (-float(scores[b]), b))
    target = order[:chosen]
    resident = {b for b in state.slots if b >= 0}
    needed = [b for b in target if b not in resident]
    admit = needed[:cap]
    evictable = sorted(
        (b for b in resident if b not in target), key=lambda b: (state.stamps.get(b, 0), b)
    )
    free = [i for i, b in enumerate(state.slots) if b < 0]
    victims = evictable[: max(0, len(admit) - len(free))]
    places = free[: len(admit)] + [state.slots.index(v) for v in victims]
    moves = list(zip(admit, places, strict=False))
    for block, slot in moves:
        state.slots[slot] = block
    now = {b for b in state.slots if b >= 0}
    for block in target:
        if block in now:
            state.stamps[block] = step
    left = evictable[len(victims) :]
    dropped = set(left[: max(0, len(now) - chosen)])
    attended = [i for i, b in enumerate(state.slots) if b >= 0 and b not in dropped]
    return PairDecision(needed, moves, attended)


def attention_oracle(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """Softmax attention of one query [d] over keys and values [n, d], in fp64."""
    logits = keys @ query * scale
    weights = np.exp(logits - logits.max())
    result: Array = weights @ values / weights.sum()
    return result


def scan_oracle(queries: Array, high: Array, low: Array) -> Array:
    """Upper-bound score of every block [n]: the largest over the group's queries [g, d]."""
    products = np.maximum(queries[:, None, :] * high, queries[:, None, :] * low)
    result: Array = products.sum(axis=-1).max(axis=0)
    return result


def rotate_oracle(x: Array, weight: Array | None, position: int, eps: float = 1e-6) -> Array:
    """RMS norm (when a weight is given) and rotary embedding, halves paired, base 1e6."""
    if weight is not None:
        x = x / np.sqrt((x**2).mean() + eps) * weight
    half = len(x) // 2
    angle = position * 1e6 ** (-np.arange(half) / half)
    a, b = x[:half], x[half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    )


def error_of(found: Array, expected: Array) -> float:
    """Relative error in the Euclidean norm; NaN counts as infinite."""
    found = np.asarray(found, dtype=np.float64)
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))
