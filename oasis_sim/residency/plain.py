"""Residency as the paper tells it: sets, stamps and sorting, one head at a time.

This is the reading version of ``oasis_sim.residency.core``; tests hold the two equal on every
input. It is slow on purpose: every rule is one line that can be compared with the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.trace.mass import decode_mass
from oasis_sim.trace.trace import NO_BLOCK, Order


@dataclass
class HeadPool:
    """Hold the resident blocks of one KV head: the slot and the last selection of each."""

    rule: ResidencyRule
    slot_of: dict[int, int] = field(default_factory=dict)
    stamp: dict[int, int] = field(default_factory=dict)
    next_use: dict[int, int] = field(default_factory=dict)

    def choose(self, order: Order, position: int) -> list[int]:
        """Return the best k candidates of an order at a token position, best first."""
        candidates = range(self.rule.sink_blocks, self.rule.last_candidate(position) + 1)
        stored = [int(block) for block in order if block != NO_BLOCK]
        return [block for block in stored if block in candidates][: self.rule.chosen_blocks]

    def fill(self, true_set: list[int]) -> None:
        """Start with the true set, best block in slot 0."""
        self.slot_of = {block: slot for slot, block in enumerate(true_set)}
        self.stamp = dict.fromkeys(true_set, 0)

    def eviction_order(self, target: list[int]) -> list[int]:
        """Return resident blocks outside the target, the least recently selected first.

        With ``belady`` the one that is selected again last comes first; ``next_use`` says when.
        """
        outside = set(self.slot_of) - set(target)
        if self.rule.belady:
            return sorted(outside, key=lambda block: (-self.next_use[block], block))
        return sorted(outside, key=lambda block: (self.stamp[block], block))

    def missing(self, target: list[int]) -> list[int]:
        """Return the ranks of the target's blocks that are not resident and may be admitted."""
        best = target[: self.rule.depth]
        return [rank for rank, block in enumerate(best) if block not in self.slot_of]

    def advance(
        self, step: int, target: list[int], cap: int | None = None
    ) -> tuple[int, list[int]]:
        """Move the pool towards a target; return the number needed and the blocks admitted.

        `cap` takes the place of the rule's.
        """
        needed = [block for block in target if block not in self.slot_of]
        eligible = [target[rank] for rank in self.missing(target)]
        admitted = eligible[: self.rule.cap_blocks if cap is None else cap]
        excess = max(0, len(self.slot_of) + len(admitted) - self.rule.pool_blocks)
        victims = self.eviction_order(target)[:excess]
        used = set(self.slot_of.values())
        free = [slot for slot in range(self.rule.pool_blocks) if slot not in used]
        slots = free + [self.slot_of.pop(victim) for victim in victims]
        for victim in victims:
            del self.stamp[victim]
        self.slot_of.update(zip(admitted, slots, strict=False))
        for block in target:
            if block in self.slot_of:
                self.stamp[block] = step
        return len(needed), admitted

    def attended(self, target: list[int]) -> set[int]:
        """Return the blocks that attention reads: the pool, at most k, the target preferred."""
        excess = max(0, len(self.slot_of) - self.rule.chosen_blocks)
        return set(self.slot_of) - set(self.eviction_order(target)[:excess])

    def check(self) -> None:
        """Raise AssertionError when the pool breaks one of its promises."""
        slots = list(self.slot_of.values())
        assert len(slots) <= self.rule.pool_blocks, "more blocks than the pool holds"
        assert len(set(slots)) == len(slots), "two blocks in one slot"
        assert all(0 <= slot < self.rule.pool_blocks for slot in slots), "slot outside the pool"
        assert set(self.stamp) == set(self.slot_of), "a stamp without a block, or the reverse"


def caps_of(pools: list[HeadPool], targets: list[list[int]], rule: ResidencyRule) -> list[int]:
    """Return the admissions that each head of a layer may make in a step."""
    if not rule.cap_over_heads:
        return [rule.cap_blocks] * len(pools)
    wanted = [
        (rank, head)
        for head, (pool, target) in enumerate(zip(pools, targets, strict=True))
        for rank in pool.missing(target)
    ]
    granted = [head for _, head in sorted(wanted)[: rule.cap_blocks * len(pools)]]
    return [granted.count(head) for head in range(len(pools))]


def captured_mass(
    rule: ResidencyRule, attended: set[int], position: int, codes: NDArray[np.uint8]
) -> float:
    """Return the mass of attended and always resident blocks; `codes` uint8[NB]."""
    newest = range(rule.last_candidate(position) + 1, position // rule.block_tokens + 1)
    always = {*range(rule.sink_blocks), *newest}
    chosen = {block for block in attended if block <= rule.last_candidate(position)}
    existing = range(min(len(codes), position // rule.block_tokens + 1))
    read = [block for block in existing if block in always or block in chosen]
    return float(decode_mass(codes[read]).sum())


def simulate_plain(
    use_order: Order,
    target_order: Order,
    path: StepPath,
    rule: ResidencyRule,
    mass: NDArray[np.uint8] | None = None,
) -> ResidencyLog:
    """Simulate every head through the path; like ``simulate(..., moves=True)``."""
    layers, heads = use_order.shape[1:3]
    shape = (path.reported, layers, heads)
    needed, admitted, overlap = (np.zeros(shape, dtype=np.int32) for _ in range(3))
    captured = np.zeros(shape)
    moved: list[list[tuple[int, int]]] = [[] for _ in range(needed.size)]
    start = np.full((layers, heads, rule.pool_blocks), NO_BLOCK, dtype=np.uint16)
    pools = {place: HeadPool(rule) for place in np.ndindex(layers, heads)}
    aims = {
        (step, layer, head): pools[layer, head].choose(
            target_order[path.target_row[step], layer, head], int(path.target_position[step])
        )
        for step, layer, head in np.ndindex(path.steps, layers, heads)
    }
    for step, layer in np.ndindex(path.steps, layers):
        targets = [aims[step, layer, head] for head in range(heads)]
        for head in range(heads):
            pool, later = pools[layer, head], range(step + 1, path.steps)
            pool.next_use = {
                block: next((s for s in later if block in aims[s, layer, head]), path.steps)
                for block in pool.slot_of
            }
        caps = caps_of([pools[layer, head] for head in range(heads)], targets, rule)
        for head in range(heads):
            pool = pools[layer, head]
            position = int(path.use_position[step])
            true_row = use_order[path.use_row[step], layer, head]
            true_set = pool.choose(true_row, position)
            if step == 0:
                pool.fill(true_set)
            if step == path.first:
                for block, slot in pool.slot_of.items():
                    start[layer, head, slot] = block
            target, missing, fetched = true_set, 0, list[int]()
            if step > 0:
                target = targets[head]
                missing, fetched = pool.advance(step, target, caps[head])
            pool.check()
            place = (step - path.first, layer, head)
            if step < path.first:
                continue
            attended = pool.attended(target)
            needed[place], admitted[place] = missing, len(fetched)
            overlap[place] = len(attended & set(true_set))
            moved[int(np.ravel_multi_index(place, shape))] = [
                (block, pool.slot_of[block]) for block in fetched
            ]
            if mass is not None:
                codes = mass[path.use_row[step], layer, head]
                captured[place] = captured_mass(rule, attended, position, codes)
    return ResidencyLog(
        needed, admitted, overlap, None if mass is None else captured, _pack(moved, start)
    )


def first_fetches_plain(
    moves: Moves, steps: int, blocks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what ``remote.first_fetches`` returns."""
    layers, heads, _ = moves.start.shape
    fetched = np.zeros((steps, layers), dtype=np.int64)
    held = [{int(block) for block in moves.start[layer].ravel() if block < blocks}
            for layer in range(layers)]  # fmt: skip
    union = np.array([len(layer) for layer in held], dtype=np.int64)
    for step, layer, head in np.ndindex(steps, layers, heads):
        place = int(np.ravel_multi_index((step, layer, head), (steps, layers, heads)))
        admitted = moves.block[moves.offset[place] : moves.offset[place + 1]]
        new = {int(block) for block in admitted if block < blocks} - held[layer]
        fetched[step, layer] += len(new)
        held[layer] |= new
    return union, fetched


def _pack(moved: list[list[tuple[int, int]]], start: NDArray[np.uint16]) -> Moves:
    """Lay the moves of each (step, layer, head) one after the other."""
    flat = np.array([pair for moves in moved for pair in moves], dtype=np.uint16).reshape(-1, 2)
    offset = np.cumsum([0, *(len(moves) for moves in moved)], dtype=np.int64)
    return Moves(offset, flat[:, 0].copy(), flat[:, 1].copy(), start)
