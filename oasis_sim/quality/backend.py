"""Who attends: the interface between the loops and what keeps and reads keys and values.

``Reference`` computes everything here, in float32. ``gpu_exec.model`` has the same interface over
paged memory and GPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.quality.drift import QueryDrift
from oasis_sim.quality.key_index import EXACT_EXTREMES, EXTREMES_FP8, KeyIndex
from oasis_sim.quality.pools import PoolStep, RowPools
from oasis_sim.quality.quotas import LayerQuotas
from oasis_sim.quality.rows import Memory
from oasis_sim.quality.start import Start
from oasis_sim.quality.store import LayerBounds, LayerStore, Rows
from oasis_sim.record.attention import AttentionPass, LayerInput
from oasis_sim.residency.predict import DRAFT, PREVIOUS
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.trace import Order


@dataclass(frozen=True)
class LoopPlan:
    """Say which blocks are kept and who predicts: a predictor of ``oasis_sim.residency``.

    With ``host_8bit`` the host keeps keys and values in 8 bits (e4m3), and so does what comes back.
    ``index`` scores blocks. ``correction_share`` of the heads take the step's own choice instead of
    the predicted one; with ``rehearse`` a layer's choice is made by the query that the input of the
    layer before gives it; without ``reuse`` all that is chosen comes anew. ``caps`` are admissions
    per head by step, in turn from step 1 on, in place of the rule's.
    """

    rule: ResidencyRule
    predictor: str
    host_8bit: bool = False
    index: KeyIndex = EXACT_EXTREMES
    correction_share: float = 0.0
    rehearse: bool = False
    reuse: bool = True
    caps: tuple[int, ...] = ()

    @property
    def own_target(self) -> bool:
        """Tell whether the target is the step's own order, not one made a step ahead."""
        return self.predictor not in {DRAFT, PREVIOUS}

    @property
    def plain(self) -> bool:
        """Tell whether rule and predictor say all: extreme keys, one cap, nothing corrected."""
        rest = replace(self, host_8bit=False)
        rule = self.rule
        more = rule.least_attended or rule.cap_over_layers or rule.depth_blocks is not None
        return rest == LoopPlan(rule, self.predictor) and not more


class TruePass(Protocol):
    """Attend the true rows of one step; what it did is known by layer afterwards."""

    position: int

    @property
    def moved(self) -> dict[int, PoolStep]:
        """Return what was read, needed and admitted."""
        ...

    @property
    def mass(self) -> dict[int, NDArray[np.float64]]:
        """Return the share of full attention that was read, [R, H]."""
        ...

    @property
    def alike(self) -> dict[int, NDArray[np.int32]]:
        """Return how many chosen blocks exact keys choose too, where that is compared, [R, H]."""
        ...

    @property
    def orders(self) -> dict[int, Order]:
        """Return the orders by the true queries."""
        ...

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        ...


class DraftPass(Protocol):
    """Attend the drafts of some true rows."""

    @property
    def orders(self) -> dict[int, Order]:
        """Return the orders by the drafts' queries."""
        ...

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        ...


class SparseMemory(Protocol):
    """Keep what rows hold from step to step.

    ``stores`` has all keys and values, for drafters that see the whole context; ``rehearsed`` takes
    the queries of plans that rehearse.
    """

    stores: dict[int, LayerStore]
    rehearsed: dict[int, Tensor]

    def seen(self, inputs: LayerInput) -> LayerInput:
        """Return a layer's input as it is kept."""
        ...

    def true_rows(self, position: int) -> TruePass:
        """Return the pass of a step's true rows."""
        ...

    def draft_rows(self, rows: Rows, true_rows: Any) -> DraftPass:
        """Return the pass of the drafts of some true rows."""
        ...

    def predict(self, rows: list[int], chooser: Any) -> None:
        """Take the next targets of some rows from a pass: of drafts, or of all true rows."""
        ...


class FullMemory(Protocol):
    """Keep what rows hold that attend to everything."""

    def full_rows(self) -> AttentionPass:
        """Return the pass of a step."""
        ...


class Backend(Protocol):
    """Make memories that begin after a prompt."""

    def sparse(self, start: Start, plans: Sequence[LoopPlan]) -> SparseMemory:
        """Return the memory of one row per plan."""
        ...

    def full(self, start: Start, rows: int) -> FullMemory:
        """Return the memory of rows with full attention."""
        ...

    def header(self) -> dict[str, Any]:
        """Return what a study says of who attended."""
        ...


class Reference:
    """Attend in float32, with a mask where blocks are not resident."""

    def sparse(self, start: Start, plans: Sequence[LoopPlan]) -> Memory:
        """Return the memory of one row per plan.

        All plans are of one scheme: only rules, predictors and caps differ.
        """
        layers, rules, first = start.full_layers, [plan.rule for plan in plans], plans[0]
        caps, stores = [plan.caps for plan in plans], layer_stores(start, len(plans))
        always = {}
        if first.index.rank:
            size, newest = start.block_tokens, first.rule.recent_blocks
            for layer in layers:
                always[layer] = stores[layer].stand_in(start, layer, first.index, size, newest)
        compared = layers if first.index.kind == EXTREMES_FP8 else ()
        return Memory(
            start=start,
            stores=stores,
            bounds={layer: LayerBounds(start, layer, first.index) for layer in layers},
            pools={
                layer: RowPools(rules, start.kv_heads, start.blocks, caps=caps, reuse=first.reuse)
                for layer in layers
            },
            own_targets=[row for row, plan in enumerate(plans) if plan.own_target],
            host_rule=rules[0] if first.host_8bit else None,
            exact={layer: LayerBounds(start, layer, EXACT_EXTREMES) for layer in compared},
            always=always,
            drift=QueryDrift(first.correction_share, start.kv_heads)
            if first.correction_share
            else None,
            quotas=LayerQuotas(start.kv_heads, layers if first.rule.cap_over_layers else ()),
        )

    def full(self, start: Start, rows: int) -> Memory:
        """Return the memory of rows with full attention."""
        return Memory(start, layer_stores(start, rows), bounds={}, pools={})

    def header(self) -> dict[str, Any]:
        """Say who attends."""
        return {"attention": "reference, float32"}


def layer_stores(start: Start, rows: int) -> dict[int, LayerStore]:
    """Return the keys and values of all layers after the prompt."""
    return {layer: LayerStore(start, layer, rows) for layer in range(len(start.spans))}
