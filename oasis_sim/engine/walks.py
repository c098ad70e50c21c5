"""The traces of a scenario as one table that the compiled steps read.

Each trace becomes a cyclic walk in steady state (`oasis_sim.residency.build_walk`). The walks of
several traces stand one after the other in the table; a request follows one trace, in turn, and
starts at a place of its own, so that requests are not in step with each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from oasis_sim.engine.costs import GpuShare
from oasis_sim.engine.result import Quality
from oasis_sim.engine.stretch import WalkTables
from oasis_sim.model import ModelShape
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.residency.walk import WalkTable, build_walk
from oasis_sim.scheme import Scheme
from oasis_sim.trace import AttentionTrace

# What an adaptive scheme chooses from, from little to much: one block per head, layer and step, if
# it is among the best part of the selection; then more blocks.
ONE_BLOCK_DEPTHS = (0.1, 0.25, 0.5, 0.75)
CAP_LADDER = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128)
# Tables are kept, since a sweep asks for the same ones again and again; each is about 100 kB.
KEPT_WALKS = 128

# Fractional part of the golden ratio in 32 bits: multiples of it spread evenly over a cycle.
GOLDEN_32 = 2_654_435_769


def residency_rule(scheme: Scheme) -> ResidencyRule:
    """Return the residency rule that a scheme asks for."""
    return ResidencyRule(
        chosen_blocks=scheme.chosen_blocks,
        pool_blocks=scheme.pool_blocks,
        cap_blocks=scheme.admission_cap,
        sink_blocks=scheme.sink_blocks,
        recent_blocks=scheme.recent_blocks,
        block_tokens=scheme.block_tokens,
        on_demand=scheme.predictor == "current",
        cap_over_heads=scheme.cap_over == "layer",
        cap_over_layers=scheme.cap_over == "model",
        belady=scheme.evict == "belady",
        least_attended=scheme.evict == "least_attended",
        gainful=scheme.admit == "gainful",
    )


@dataclass(frozen=True, eq=False)
class Walks:
    """Hold the walk tables of all GPUs and where each trace's cycle begins."""

    tables: WalkTables
    first: tuple[int, ...]
    length: tuple[int, ...]
    walks: tuple[WalkTable, ...]
    quality: Quality
    seed: int

    @property
    def busiest(self) -> int:
        """Return the rank that moves most."""
        return int(self.tables.rung_blocks.sum(axis=(0, 1)).argmax())

    def start(self, request: int) -> tuple[int, int, int]:
        """Return (first, length, place): the cycle that a request follows and where it starts."""
        which = request % len(self.first)
        first, length = self.first[which], self.length[which]
        turn = request // len(self.first) + 1 + self.seed
        place = (turn * GOLDEN_32 % 2**32) * length // 2**32
        return first, length, first + place

    def locate(self, place: int) -> tuple[int, int]:
        """Return (trace, step in its cycle) of a place in the table."""
        which = max(i for i, first in enumerate(self.first) if first <= place)
        return which, place - self.first[which]


def build_walks(
    traces: tuple[AttentionTrace, ...],
    scheme: Scheme,
    share: GpuShare,
    drafter: str | None,
    seed: int,
) -> Walks:
    """Build the tables of all traces; without a selection no trace is needed."""
    model = share.model
    if not scheme.selects:
        nothing, once = np.zeros((1, model.layers, share.tp), dtype=np.int64), np.array([1])
        tables = _tables(nothing, 0 * once, np.array([[1.0, 1.0, 0.0]]), once, rungs=1)
        return Walks(tables, (0,), (1,), (), _quality((), ()), seed)
    rules = cap_ladder(scheme)
    rungs = [
        tuple(
            _walk(trace, rule, scheme.predictor, drafter, model, scheme.speculative)
            for trace in traces
        )
        for rule in rules
    ]
    walks = rungs[0]
    length = tuple(walk.period for walk in walks)
    first = tuple(int(n) for n in np.cumsum([0, *length[:-1]]))
    admitted = np.concatenate([_by_gpu(walk, share) for rung in rungs for walk in rung])
    needed = np.concatenate([walk.needed.sum(axis=1) for rung in rungs for walk in rung])
    # A head that several GPUs hold is fetched by each of them.
    needed = needed.astype(np.int64) * (share.kv_heads * share.tp // model.kv_heads)
    if not scheme.offload:
        admitted, needed = np.zeros_like(admitted), np.zeros_like(needed)
    elif not scheme.reuse:
        admitted = np.full_like(admitted, scheme.chosen_blocks * share.kv_heads)
        needed = admitted.sum(axis=(1, 2))
    quality = np.concatenate([_columns(walk) for rung in rungs for walk in rung])
    tokens = np.concatenate([walk.tokens for walk in walks]).astype(np.int64)
    tables = _tables(admitted, needed, quality, tokens, rungs=len(rungs))
    return Walks(tables, first, length, walks, _quality(walks, traces), seed)


@lru_cache(maxsize=KEPT_WALKS)
def _walk(
    trace: AttentionTrace,
    rule: ResidencyRule,
    predictor: str,
    drafter: str | None,
    model: ModelShape,
    speculative: bool,
) -> WalkTable:
    """Build the walk of one trace, or return the one that was built before."""
    return build_walk(trace, rule, predictor, drafter, model, speculative=speculative)


def _by_gpu(walk: WalkTable, share: GpuShare) -> np.ndarray:
    """Return the blocks that each GPU admits for the heads that it holds, int64[W, L, tp]."""
    held = [share.model.kv_heads_of_gpu(rank, share.tp) for rank in range(share.tp)]
    parts = [walk.admitted_by_head[:, :, heads].sum(axis=2, dtype=np.int64) for heads in held]
    return np.stack(parts, axis=2)


def _tables(
    admitted: np.ndarray, needed: np.ndarray, quality: np.ndarray, tokens: np.ndarray, *, rungs: int
) -> WalkTables:
    """Return the tables of blocks int64[rungs x steps, L, tp]; equal GPUs and layers are found."""
    ranks, copies = np.unique(admitted, axis=2, return_counts=True)
    kinds, group, size = np.unique(ranks, axis=1, return_inverse=True, return_counts=True)
    return WalkTables(
        copies=copies.astype(np.int64),
        group=group.reshape(-1).astype(np.int64),
        group_size=size.astype(np.int64),
        admitted=np.ascontiguousarray(kinds),
        needed=needed,
        quality=quality,
        rung_blocks=ranks.sum(axis=1).reshape(rungs, -1, len(copies)),
        tokens=tokens,
    )


def cap_ladder(scheme: Scheme) -> tuple[ResidencyRule, ...]:
    """Return the rules that a step may follow: one, or a ladder of them for an adaptive scheme.

    Each rung's table is a steady state of its own: a step that changes the rung goes on as if that
    one had always been in force.
    """
    rule = residency_rule(scheme)
    if not scheme.adaptive_cap:
        return (rule,)
    caps = [cap for cap in CAP_LADDER if cap < rule.chosen_blocks]
    rungs = [(1, part) for part in ONE_BLOCK_DEPTHS]
    rungs += [(cap, 1.0) for cap in (*caps, rule.chosen_blocks)]
    return tuple(
        dataclasses.replace(rule, cap_blocks=cap, depth_blocks=math.ceil(part * rule.chosen_blocks))
        for cap, part in rungs
    )


def _columns(walk: WalkTable) -> np.ndarray:
    """Return agreement, captured and lost mass per walk step (NaN if the trace has no mass)."""
    unknown = np.full(len(walk.admitted), np.nan)
    mass = unknown if walk.mass is None else walk.mass
    lost = unknown if walk.lost is None else walk.lost
    return np.stack([walk.overlap, mass, lost], axis=1)


def _quality(walks: Sequence[WalkTable], traces: Sequence[AttentionTrace]) -> Quality:
    """Average the proxies of the traces, each weighted equally; None unless all hold mass."""
    if not walks:
        return Quality(1.0, 1.0, 1.0, 0.0, 0.0, "none (all KV attended)")
    return Quality(
        topk_agreement=_mean([walk.overlap_mean for walk in walks]),
        mass_mean=_mean([walk.mass_mean for walk in walks]),
        mass_p5=_mean([walk.mass_p5 for walk in walks]),
        lost_mass_mean=_mean([walk.lost_mean for walk in walks]),
        lost_mass_p95=_mean([walk.lost_p95 for walk in walks]),
        trace_origin=" and ".join(sorted({trace.origin for trace in traces})),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
