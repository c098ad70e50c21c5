"""The working sets of one layer while rows decode side by side, moved all at once.

Every (row, KV head) has a pool of its own. The rules are those of ``oasis_sim.residency.plain``,
written for arrays; the tests hold the two, and the compiled core, equal on the same orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oasis_sim.quality.observed import Places, ReadShares
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.trace import NO_BLOCK, Order

Blocks = NDArray[np.bool_]
Counts = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PoolStep:
    """Report one step of a layer: blocks that attention reads, bool [R, H, B], counts [R, H].

    ``overlap`` counts the chosen blocks that the true query would have chosen.
    """

    attended: Blocks
    needed: Counts
    admitted: Counts
    overlap: Counts


class RowPools:
    """Hold the pools of a layer, R rows times H heads, and move them step by step."""

    def __init__(
        self,
        rules: Sequence[ResidencyRule],
        heads: int,
        blocks: int,
        *,
        caps: Sequence[Sequence[int]] = (),
        reuse: bool = True,
    ) -> None:
        """Start with empty pools, for block ids below ``blocks``; one rule per row.

        ``caps`` by row, in turn from step 1 on, take the place of the rules'. Without ``reuse`` the
        whole selection counts as needed and fetched in every step.
        """
        rows = len(rules)
        self._rules = tuple(rules)
        self._chosen = _column(rule.chosen_blocks for rule in rules)
        self._pool = _column(rule.pool_blocks for rule in rules)
        self._caps = [
            list(row) or [rule.cap_blocks]
            for row, rule in zip(caps or [()] * rows, rules, strict=True)
        ]
        self._depth = _column(rule.depth for rule in rules)
        self._reuse = reuse
        self._gainful = np.array([rule.gainful for rule in rules])[:, None, None]
        self._fetched: Places = (np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.int64))
        self._first = _column(rule.sink_blocks for rule in rules)
        self._shared_caps = np.array(
            [rule.cap_over_heads or rule.cap_over_layers for rule in rules]
        )
        self._most = max(rule.chosen_blocks for rule in rules)
        self._resident = np.zeros((rows, heads, blocks), dtype=np.bool_)
        self._stamp = np.zeros((rows, heads, blocks), dtype=np.int64)
        self._read = np.zeros_like(self._resident)
        self.shares = ReadShares(self.shape) if rules[0].least_attended else None
        self._step = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return rows, heads and blocks."""
        return self._resident.shape

    @property
    def cap(self) -> NDArray[np.int64]:
        """Return each row's admissions per head in the step to come, [R, 1, 1]."""
        cap = _column(caps[(self._step - 1) % len(caps)] for caps in self._caps)
        return np.minimum(cap, self._pool)

    def advance(
        self, position: int, use: Order, target: Order, quota: NDArray[np.int64] | None = None
    ) -> PoolStep:
        """Take the next step, at a token position; orders [R, H, N], best first.

        ``use`` is the order by the step's true query, ``target`` the one that was predicted for
        this step; ``quota`` are the layer's admissions by row, [R], where layers share them. The
        first step starts with the true set, whatever was predicted.
        """
        last = _column(rule.last_candidate(position) for rule in self._rules)
        true_rank = self._ranked(use, last)
        true_set = self._marked(true_rank)
        needed = admitted = np.zeros(true_rank.shape[:2], dtype=np.int32)
        goal, drop = true_set, None
        if self._step == 0:
            self._resident |= true_set
        else:
            rank = self._ranked(target, last)
            goal = self._marked(rank)
            needed, admitted, drop = self._move(rank, goal, quota)
        read = self._read = self._resident if drop is None else self._resident & ~drop
        blocks = position // self._rules[0].block_tokens + 1
        ids = np.arange(blocks)
        always = (ids < self._first) | (ids > last)
        self._step += 1
        return PoolStep(
            attended=read[..., :blocks] | always,
            needed=needed,
            admitted=admitted,
            overlap=(read & true_set).sum(axis=-1, dtype=np.int32),
        )

    def alike(self, position: int, one: Order, other: Order) -> Counts:
        """Return how many blocks two orders [R, H, N] both choose at a position, [R, H]."""
        last = _column(rule.last_candidate(position) for rule in self._rules)
        both = self._marked(self._ranked(one, last)) & self._marked(self._ranked(other, last))
        return np.asarray(both.sum(axis=-1, dtype=np.int32))

    def _ranked(self, order: Order, last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each pool's best candidates by rank, [R, H, most chosen]; -1 = none."""
        allowed = (order >= self._first) & (order <= last) & (order != NO_BLOCK)
        rank = np.cumsum(allowed, axis=-1) - 1
        taken = allowed & (rank < self._chosen)
        ranked = np.full((*order.shape[:2], self._most), -1, dtype=np.int64)
        row, head, place = np.nonzero(taken)
        ranked[row, head, rank[row, head, place]] = order[row, head, place]
        return ranked

    def _marked(self, ranked: NDArray[np.int64]) -> Blocks:
        """Return which blocks are ranked, [R, H, blocks]."""
        marked = np.zeros_like(self._resident)
        row, head, place = np.nonzero(ranked >= 0)
        marked[row, head, ranked[row, head, place]] = True
        return marked

    def observe(self, shares: NDArray[np.float64]) -> None:
        """Learn what share of all that was read attention gave to each block, [R, H, B]."""
        if self.shares is not None:
            self.shares.note(shares, self._read, self._fetched)

    def _move(
        self, ranked: NDArray[np.int64], goal: Blocks, quota: NDArray[np.int64] | None
    ) -> tuple[Counts, Counts, Blocks]:
        """Admit, evict and stamp; return needed, admitted and what is resident but not read."""
        here = np.take_along_axis(self._resident, np.maximum(ranked, 0), axis=-1)
        missing = (ranked >= 0) & ~here
        outside = self._resident & ~goal
        granted = self._granted(self._eligible(missing, outside), quota)
        row, head, place = np.nonzero(granted)
        self._fetched = row, head, ranked[row, head, place]
        age = self._stamp if self.shares is None else self.shares.known
        leaving = np.argsort(np.where(outside, age, np.nan), axis=-1, kind="stable")
        leave_rank = np.empty_like(leaving)
        np.put_along_axis(leave_rank, leaving, np.arange(outside.shape[-1]), axis=-1)
        admitted = granted.sum(axis=-1, dtype=np.int32)
        held = self._resident.sum(axis=-1) + admitted
        excess = np.maximum(held - self._pool[..., 0], 0)
        unread = np.maximum(held - excess - self._chosen[..., 0], 0)
        self._resident &= ~(outside & (leave_rank < excess[..., None]))
        self._resident[row, head, ranked[row, head, place]] = True
        self._stamp[goal & self._resident] = self._step
        if self.shares is not None:
            self.shares.forget(self._fetched)
        drop = outside & (leave_rank < (excess + unread)[..., None])
        if not self._reuse:
            whole = (ranked >= 0).sum(axis=-1, dtype=np.int32)
            return whole, whole, drop
        return missing.sum(axis=-1, dtype=np.int32), admitted, drop

    def _eligible(self, missing: Blocks, outside: Blocks) -> Blocks:
        """Return which missing blocks are worth a fetch: deep ones and poor ones may not be."""
        eligible = missing & (np.arange(missing.shape[-1]) < self._depth)
        if self.shares is None or not self._gainful.any():
            return eligible
        room = self.shares.room(outside, self._pool[..., 0] - self._resident.sum(axis=-1))
        gainful = np.cumsum(eligible, axis=-1) <= room[..., None]
        return np.asarray(eligible & (gainful | ~self._gainful))

    def _granted(self, missing: Blocks, quota: NDArray[np.int64] | None) -> Blocks:
        """Return which missing blocks may be fetched, best first.

        Where heads share their caps, each head's first miss comes before every head's second.
        """
        cap = self.cap
        turn = np.cumsum(missing, axis=-1)
        alone = turn <= cap
        if not self._shared_caps.any():
            return missing & alone
        heads = missing.shape[1]
        totals = cap[:, 0, 0] * heads if quota is None else quota
        row, head, place = np.nonzero(missing)
        waiting = np.zeros((len(missing), missing.shape[2] + 1, heads), dtype=np.bool_)
        waiting[row, turn[row, head, place], head] = True
        before = np.cumsum(waiting.reshape(len(missing), -1), axis=-1).reshape(waiting.shape)
        together = np.zeros_like(missing)
        together[row, head, place] = before[row, turn[row, head, place], head] <= (totals[row])
        return missing & np.where(self._shared_caps[:, None, None], together, alone)


def _column(values: Iterable[int]) -> NDArray[np.int64]:
    """Return one value per row, [R, 1, 1]."""
    return np.array(list(values), dtype=np.int64)[:, None, None]
