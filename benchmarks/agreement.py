"""What a run of `quality` decided, kept by step, and two such runs side by side.

Used by ``quality_agreement.py``. T steps, L full-attention layers, R cases, H KV heads, K chosen
blocks, B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_exec.model.kernels import PageKernels
from gpu_exec.model.memory import OffloadedLayer
from gpu_exec.model.rows import PagedMemory
from oasis_sim.quality.backend import LoopPlan
from oasis_sim.quality.bootstrap import BlockBootstrap
from oasis_sim.residency.predict import DRAFT, PREVIOUS

UNIT = 2.0**-8
"""Largest relative error of rounding to bfloat16; two roundings of nearly equal numbers can lie
twice that apart."""


@dataclass(frozen=True, eq=False)
class Choices:
    """Hold what a run was given, what it decided and what came out.

    ``targets`` int16 [T, L, R, H, K], best first, -1 = none; ``attended`` bool [T, L, R, H, B];
    ``admitted`` [R, T, L, H]; ``outputs`` [R, 3, T] as ``output_quality``.
    """

    tokens: NDArray[np.int64]
    drafts: NDArray[np.int64]
    targets: NDArray[np.int16]
    attended: NDArray[np.bool_]
    admitted: NDArray[np.int32]
    outputs: NDArray[np.float64]

    def save(self, path: Path) -> None:
        """Write a compressed archive."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays["attended"] = np.packbits(self.attended, axis=-1)
        np.savez_compressed(path, blocks=self.attended.shape[-1], **arrays)

    @classmethod
    def load(cls, path: Path) -> Choices:
        """Read what ``save`` wrote."""
        with np.load(path) as found:
            arrays = {field.name: found[field.name] for field in fields(cls)}
            count = int(found["blocks"])
        arrays["attended"] = np.unpackbits(arrays["attended"], axis=-1, count=count).astype(bool)
        return cls(**arrays)


class WeighedKernels:
    """Run kernels, and keep for each scan how far rounding of its inputs can move its scores.

    A score is a sum of products q k. With both factors off by one unit in the last place it moves
    by 4 u sum |q k| at most (``bound``), and by 2 u sqrt(sum (q k)^2) or so when the errors are
    independent (``spread``); the largest over the heads of a group.
    """

    def __init__(self, inner: PageKernels, bounds: Any, shape: Any) -> None:
        """Wrap; ``bounds`` are the places of a block's extremes in a tile."""
        self._inner, self._bounds, self._shape = inner, bounds, shape
        self.weights: dict[int, list[Tensor]] = {}  # by address of the scores: the last two scans

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the kernels do."""
        return getattr(self._inner, name)

    def scan(self, query: Tensor, tiles: Tensor, scores: Tensor, position: Tensor) -> None:
        """Scan, and weigh the scores."""
        self._inner.scan(query, tiles, scores, position)
        shape = self._shape
        high, low = tiles[:, :, self._bounds].float().flatten(1, 2).chunk(2, dim=-1)
        grouped = query.float().reshape(shape.pairs, shape.group, -1)
        used = torch.where(grouped[:, :, None] > 0, high[:, None], low[:, None])
        products = (grouped[:, :, None] * used).abs()
        bound = 4 * UNIT * products.sum(dim=-1).amax(dim=1)
        spread = 2 * UNIT * products.square().sum(dim=-1).sqrt().amax(dim=1)
        both = torch.stack([bound, spread]).view(2, shape.rows, shape.heads, -1)
        self.weights.setdefault(scores.data_ptr(), []).append(both)
        del self.weights[scores.data_ptr()][:-2]


@dataclass(eq=False)
class Watch:
    """See a paged run's decisions beside those of another run.

    With ``steer`` the other run's choices are taken in place of its own.
    """

    plans: list[LoopPlan]
    expected: Choices
    prompt_tokens: int
    layers: list[int]
    steer: bool

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.kernels: WeighedKernels | None = None
        shape = self.expected.targets.shape[:4]
        self.attended = np.zeros_like(self.expected.attended)
        self.different = np.zeros(shape, dtype=bool)  # the best blocks, as sets
        self.gap, self.bound, self.spread = (np.zeros(shape) for _ in range(3))
        self.margin_within = np.zeros(shape, dtype=bool)

    def scores(self, memory: PagedMemory, layer: int, position: int, own: Tensor) -> Tensor:
        """Return the scores that decide, [R, H, blocks]; look at the run's own."""
        step, place = position - self.prompt_tokens, self.layers.index(layer)
        theirs = torch.from_numpy(self.expected.targets[step, place].astype(np.int64))
        theirs = theirs.to(own.device)
        self._compare(step, place, own, theirs, self._weights(memory.layers[layer], step))
        if not self.steer:
            return own
        rank = torch.arange(theirs.shape[-1], 0, -1, device=own.device, dtype=own.dtype)
        forced = torch.zeros(*own.shape[:2], own.shape[2] + 1, device=own.device)
        listed = torch.where(theirs < 0, own.shape[2], theirs)
        forced.scatter_(2, listed, rank.expand_as(listed))
        return forced[..., :-1].contiguous()

    def attends(self, layer: int, position: int, scores: Tensor, attended: Tensor) -> None:
        """Keep what is attended."""
        del scores
        step, place = position - self.prompt_tokens, self.layers.index(layer)
        self.attended[step, place, ..., : attended.shape[-1]] = attended.cpu().numpy()

    def _weights(self, pages: OffloadedLayer, step: int) -> Tensor:
        """Return bound and spread of the scores that each row's target comes from, [2, R, ...]."""
        assert self.kernels is not None
        true = self.kernels.weights[pages.true_scores.data_ptr()]
        draft = self.kernels.weights.get(pages.draft_scores.data_ptr(), true)
        found = true[-1].clone()
        for row, plan in enumerate(self.plans):
            if step > 0 and plan.predictor == DRAFT:
                found[:, row] = draft[-1][:, row]
            elif step > 0 and plan.predictor == PREVIOUS:
                found[:, row] = true[0][:, row]
        return found

    def _compare(self, step: int, place: int, own: Tensor, theirs: Tensor, weights: Tensor) -> None:
        rule = self.plans[0].rule
        last = rule.last_candidate(step + self.prompt_tokens)
        allowed = torch.zeros(own.shape[2], dtype=torch.bool, device=own.device)
        allowed[rule.sink_blocks : last + 1] = True
        ranked = own.double().masked_fill(~allowed, -torch.inf)
        order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices
        chosen = torch.tensor([plan.rule.chosen_blocks for plan in self.plans], device=own.device)
        rank = torch.arange(own.shape[2], device=own.device)
        best = torch.zeros_like(ranked, dtype=torch.bool)
        best.scatter_(2, order, (rank < chosen[:, None, None]).expand_as(order))
        best &= allowed
        wanted = torch.zeros(
            *best.shape[:2], best.shape[2] + 1, dtype=torch.bool, device=own.device
        )
        wanted.scatter_(2, torch.where(theirs < 0, best.shape[2], theirs), True)
        wanted = wanted[..., :-1]
        ours_only, theirs_only = best & ~wanted, wanted & ~best
        high = ranked.masked_fill(~ours_only, -torch.inf).max(dim=-1)
        low = ranked.masked_fill(~theirs_only, torch.inf).min(dim=-1)
        pair = torch.stack([high.indices, low.indices], dim=-1)
        bound, spread = (part.double().gather(-1, pair) for part in weights)
        at = (step, place)
        different = ours_only.any(dim=-1)
        self.different[at] = different.cpu().numpy()
        gap = torch.where(different, high.values - low.values, 0.0)
        self.gap[at] = gap.cpu().numpy()
        self.bound[at] = bound.sum(dim=-1).cpu().numpy()
        self.spread[at] = spread.square().sum(dim=-1).sqrt().cpu().numpy()
        self._margins(at, ranked, order, chosen, weights)

    def _margins(
        self, at: tuple[int, int], ranked: Tensor, order: Tensor, chosen: Tensor, weights: Tensor
    ) -> None:
        """Note where the last chosen and the first left block lie within the spread anyway."""
        cut = (chosen - 1)[:, None, None].expand(*order.shape[:2], 1)
        pair = order.gather(-1, torch.cat([cut, (cut + 1).clamp(max=order.shape[2] - 1)], dim=-1))
        values = ranked.gather(-1, pair)
        spread = weights[1].double().gather(-1, pair).square().sum(dim=-1).sqrt()
        self.margin_within[at] = (values[..., 0] - values[..., 1] <= 3 * spread).cpu().numpy()


def decisions(watch: Watch, case: int) -> dict[str, Any]:
    """Count one case's decisions over the steps 1 to T-1, alike and not, and why not.

    A difference of the best blocks is ``within_rounding`` when the scores of the blocks that were
    exchanged lie no further apart than ``bound``; else it ``follows`` when something of the same
    case was attended differently before (an earlier step or layer), else it is ``unexplained``.
    """
    different = watch.different[:, :, case]
    attended = (watch.attended != watch.expected.attended)[:, :, case].any(axis=-1)
    flat = attended.any(axis=-1).ravel()
    before = np.concatenate([[False], np.logical_or.accumulate(flat)[:-1]])
    before = np.broadcast_to(before.reshape(*attended.shape[:2], 1), attended.shape)
    gap, bound, spread = (part[:, :, case] for part in (watch.gap, watch.bound, watch.spread))
    within = different & (gap <= bound)
    beyond = different & ~within
    shares = (gap / spread)[different]
    return {
        "decisions": int(different.size),
        "same_best_blocks": int((~different).sum()),
        "same_attended": int((~attended).sum()),
        "different_within_rounding": int(within.sum()),
        "different_within_three_spreads": int((different & (gap <= 3 * spread)).sum()),
        "different_follows": int((beyond & before).sum()),
        "different_unexplained": int((beyond & ~before).sum()),
        "attended_without_cause": int((attended & ~different & ~before).sum()),
        "largest_gap_by_bound": float((gap / bound)[different].max(initial=0.0)),
        "gap_by_spread_median": float(np.median(shares)) if len(shares) else 0.0,
        "gap_by_spread_largest": float(shares.max(initial=0.0)),
        "cut_within_three_spreads": float(watch.margin_within[:, :, case].mean()),
    }


def divergence(
    found: NDArray[np.float64],
    expected: NDArray[np.float64],
    boot: BlockBootstrap,
    name: str = "kl_gpu",
) -> dict[str, Any]:
    """Return mean KL of two runs by step, [T-1] each, and their ratio with its interval.

    ``name`` is that of the first mean; the other is ``kl_cpu``.
    """
    one, other = boot.means(found), boot.means(expected)
    low, high = np.percentile(one / other, [2.5, 97.5])
    return {
        name: float(found.mean()),
        "kl_cpu": float(expected.mean()),
        "ratio": float(found.mean() / expected.mean()),
        "ratio_low": float(low),
        "ratio_high": float(high),
    }
