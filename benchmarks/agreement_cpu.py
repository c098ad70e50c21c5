"""The reference of ``quality_agreement.py``, which keeps what its pools decide."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.quality.backend import LoopPlan, Reference
from oasis_sim.quality.pools import PoolStep
from oasis_sim.quality.rows import Memory
from oasis_sim.quality.start import Start
from oasis_sim.trace.trace import Order


class Kept(Reference):
    """Attend in float32, and keep what the pools decide."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.targets: dict[int, list[NDArray[np.int16]]] = {}
        self.attended: dict[int, list[NDArray[np.bool_]]] = {}

    def sparse(self, start: Start, plans: Any) -> Memory:
        """Return the memory of one row per plan."""
        memory = super().sparse(start, plans)
        for layer, pools in memory.pools.items():
            pools.advance = partial(  # type: ignore[method-assign]
                self._advance, layer, plans, pools.advance
            )
        return memory

    def _advance(
        self,
        layer: int,
        plans: list[LoopPlan],
        move: Any,
        position: int,
        use: Order,
        target: Order,
        *caps: Any,
    ) -> PoolStep:
        first = layer not in self.targets
        kept = ranked(use if first else target, plans, position)
        self.targets.setdefault(layer, []).append(kept)
        moved: PoolStep = move(position, use, target, *caps)
        self.attended.setdefault(layer, []).append(moved.attended)
        return moved


def ranked(order: Order, plans: list[LoopPlan], position: int) -> NDArray[np.int16]:
    """Return the chosen blocks of orders [R, H, N], best first, -1 = none, [R, H, K]."""
    most = max(plan.rule.chosen_blocks for plan in plans)
    found = np.full((*order.shape[:2], most), -1, dtype=np.int16)
    for row, plan in enumerate(plans):
        rule = plan.rule
        for head, listed in enumerate(order[row]):
            allowed = (listed >= rule.sink_blocks) & (listed <= rule.last_candidate(position))
            best = listed[allowed][: rule.chosen_blocks]
            found[row, head, : len(best)] = best
    return found


def widened(attended: NDArray[np.bool_], blocks: int) -> NDArray[np.bool_]:
    """Return attended blocks [R, H, B] with more places, all unattended."""
    return np.pad(attended, ((0, 0), (0, 0), (0, blocks - attended.shape[-1])))
