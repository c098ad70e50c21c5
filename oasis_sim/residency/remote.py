"""What a decode host needs of a KV cache that stays on another node.

The prefill node sends, per layer, the union over KV heads of the blocks that one extra decode
step selects. Later the decode node fetches a block of all heads of a layer once, when the first
of them admits it (section 2 of arXiv 2608.08097). Both follow from the trace: which blocks its
heads share, and which of the blocks admitted later none of them held before.

**Other contexts.** A trace of n blocks stands for a context of N at the same relative depth: the
run's k chosen blocks of N are the trace's k n / N of n, its cap shrinks alike, and each block of
the trace stands for N / n of the run. Shares of the context are kept, as depth is for layers.

**More steps.** A trace is shorter than a request. The share F of the blocks outside the first
union that have been fetched after t steps follows F(t) = 1 - (1 + t / tau)^-alpha: blocks are
first needed at rates that are gamma-distributed over blocks (Fisher, Corbet and Williams 1943;
negative binomial accumulation curve). alpha, layer by layer, and tau are fitted to the trace's own
curves; nothing else enters.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.fetched_once import count_first_fetches
from oasis_sim.residency.mapping import map_heads
from oasis_sim.residency.predict import CURRENT, PREVIOUS, target_source
from oasis_sim.residency.route import check_steps
from oasis_sim.residency.rule import Moves, ResidencyRule, StepPath
from oasis_sim.residency.simulate import simulate_path
from oasis_sim.trace.trace import AttentionTrace, Order

if TYPE_CHECKING:
    from oasis_sim.model import ModelShape

Float = NDArray[np.float64]
SCALES = np.geomspace(0.25, 1e5, 160)
"""The values of tau, in steps, among which the fit chooses."""
LEAST_LEFT = 5e-4


@dataclass(frozen=True, eq=False)
class Coverage:
    """Say which share of a prompt's blocks a decode host holds, per model layer.

    ``union`` float64[L] of all blocks at first; of the others 1 - (1 + t / tau)^-alpha after t
    decode steps, ``alpha`` float64[L], ``tau`` in steps. ``recorded`` float64[S, L] is the same
    share as counted in the trace after 1 .. S steps, ``heads`` how many KV heads were recorded.
    """

    union: Float
    alpha: Float
    tau: float
    recorded: Float
    heads: int

    def later(self, steps: NDArray[np.int64] | int) -> Float:
        """Return the share of the other blocks that were fetched by `steps`, [..., L]."""
        return grown(np.asarray(steps, dtype=np.float64)[..., None], self.alpha, self.tau)

    def union_blocks(self, blocks: int, least: int) -> Float:
        """Return the blocks of a layer that are sent at first, of `blocks`; `least` at the least.

        float64[L]; `least` is what one head chooses (deeper sets than the trace stores are read
        off its deepest one).
        """
        return np.clip(self.union * blocks, min(least, blocks), blocks)

    def held_blocks(self, blocks: int, least: int, steps: NDArray[np.int64] | int) -> Float:
        """Return the blocks of a layer that the host holds after `steps`, float64[..., L]."""
        union = self.union_blocks(blocks, least)
        return np.asarray(union + (blocks - union) * self.later(steps))


def grown(steps: Float, alpha: Float, tau: float) -> Float:
    """Return F(t) = 1 - (1 + t / tau)^-alpha, computed without cancellation."""
    return np.asarray(-np.expm1(-alpha * np.log1p(steps / tau)))


def coverage(
    trace: AttentionTrace,
    rule: ResidencyRule,
    predictor: str,
    drafter: str | None,
    model: ModelShape,
    blocks: int,
) -> Coverage:
    """Return what a decode host holds of a prompt of `blocks` blocks under a rule.

    The other arguments are those of ``build_walk``. Raises InputError when the trace is too
    short or holds no such predictor.
    """
    check_steps(trace, trace.steps)
    heads = map_heads(trace, model.layers, model.kv_heads)
    part = heads.part
    unions, curves = [], []
    for share, scaled in _scaled_rules(rule, trace_depth(part, rule, blocks)):
        for path, targets in _paths(part, scaled, predictor, drafter):
            union, curve = _counted(part, targets, path, scaled)
            unions.append(share * union)
            curves.append(share * curve)
    steps = min(len(curve) for curve in curves)
    shares = np.sum([curve[:steps] for curve in curves], axis=0) / 2.0
    alpha, tau = fit_growth(shares)
    return Coverage(
        union=(np.sum(unions, axis=0) / 2.0)[heads.layer],
        alpha=alpha[heads.layer],
        tau=tau,
        recorded=shares[:, heads.layer],
        heads=part.kv_heads,
    )


def trace_depth(trace: AttentionTrace, rule: ResidencyRule, blocks: int) -> int:
    """Return how many of a trace's blocks stand for the chosen ones of a prompt of `blocks`.

    At most as many as the trace stores. All that `coverage` returns depends on it alone.
    """
    recorded = int(trace.position[0]) // rule.block_tokens
    depth = round(rule.chosen_blocks * recorded / max(blocks, 1))
    return max(1, min(depth, trace.stored_blocks))


def first_fetches(
    moves: Moves, steps: int, blocks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first union int64[L] and the blocks that each step adds, int64[steps, L].

    Only blocks below `blocks` count. ``moves.start`` is what the heads hold before.
    """
    layers = moves.start.shape[0]
    union = np.zeros(layers, dtype=np.int64)
    fetched = np.zeros((steps, layers), dtype=np.int64)
    held = np.zeros(blocks, dtype=np.bool_)
    count_first_fetches(moves.start, moves.offset, moves.block, held, union, fetched)
    return union, fetched


def fit_growth(share: Float) -> tuple[Float, float]:
    """Fit alpha float64[L] and one tau to shares float64[S, L] reached after 1 .. S steps.

    Least squares in -log(1 - F) = alpha log(1 + t / tau); tau from SCALES, ties to the lower. One
    scale for all layers, because a single layer of a short trace holds too few blocks for two
    parameters.
    """
    steps = np.arange(1, len(share) + 1, dtype=np.float64)
    depth = -np.log(np.maximum(1.0 - share, LEAST_LEFT))
    # Where nearly nothing is left the logarithm says nothing: only the first such step counts.
    told = np.cumsum(share > 1.0 - LEAST_LEFT, axis=0) <= 1
    form = np.log1p(steps[None, :] / SCALES[:, None])
    alpha = form @ (told * depth) / (form**2 @ told)
    error = ((depth[None] - alpha[:, None] * form[:, :, None]) ** 2 * told).sum(axis=(1, 2))
    best = int(np.argmin(error))
    return np.asarray(alpha[best]), float(SCALES[best])


def _scaled_rules(rule: ResidencyRule, chosen: int) -> list[tuple[float, ResidencyRule]]:
    """Return rules at the trace's depth with their weights: one, or the caps below and above."""
    ratio = chosen / rule.chosen_blocks
    pool = max(chosen, round(rule.pool_blocks * ratio))
    depth = round(rule.depth * ratio)
    if rule.cap_blocks >= rule.pool_blocks:
        caps = [(1.0, pool)]
    else:
        cap = rule.cap_blocks * ratio
        above = cap - math.floor(cap)
        caps = [(1.0 - above, math.floor(cap)), (above, math.ceil(cap))]
    return [
        (
            share,
            dataclasses.replace(
                rule, chosen_blocks=chosen, pool_blocks=pool, cap_blocks=cap, depth_blocks=depth
            ),
        )
        for share, cap in caps
        if share > 0.0
    ]


def _paths(
    trace: AttentionTrace, rule: ResidencyRule, predictor: str, drafter: str | None
) -> list[tuple[StepPath, Order]]:
    """Return the way through a trace from its first step on, and from its last step back."""
    targets, ahead = target_source(trace, CURRENT if rule.on_demand else predictor, drafter)
    previous = predictor == PREVIOUS and not rule.on_demand
    position = trace.position.astype(np.int64)
    forward = np.arange(trace.steps, dtype=np.int64)
    found = []
    for rows in (forward, forward[:0:-1].copy()):
        source = np.maximum(rows - ahead, 0)
        if previous:
            source = np.concatenate([rows[:1], rows[:-1]])
        path = StepPath(rows, position[rows], source, position[source] + ahead)
        found.append((path, targets))
    return found


def _counted(
    trace: AttentionTrace, targets: Order, path: StepPath, rule: ResidencyRule
) -> tuple[Float, Float]:
    """Return the first union as a share of all blocks, [L], and the growth after it, [S-1, L]."""
    log = simulate_path(trace.use_order, targets, path, rule, mass=trace.mass, moves=True)
    assert log.moves is not None
    blocks = int(path.use_position[0]) // rule.block_tokens
    union, fetched = first_fetches(log.moves, path.steps, blocks)
    rest = np.maximum(blocks - union, 1)
    return union / max(blocks, 1), np.cumsum(fetched[1:], axis=0) / rest
