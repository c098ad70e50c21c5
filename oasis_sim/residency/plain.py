"""Residency as the paper tells it: sets, stamps and sorting, one head at a time.

This is the reading version of ``oasis_sim.residency.core``; tests hold the two equal on every
input. It is slow on purpose: every rule is one line that can be compared with the text. What a
single head does is in ``oasis_sim.residency.head_pool``.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.head_pool import HeadPool
from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.trace.trace import NO_BLOCK, Order

Place = tuple[int, int]


def caps_of(pools: list[HeadPool], targets: list[list[int]], total: int) -> list[int]:
    """Return the admissions that each head of a layer may make in a step, `total` among them.

    Each head's first miss comes before every head's second.
    """
    wanted = [
        (turn, head)
        for head, (pool, target) in enumerate(zip(pools, targets, strict=True))
        for turn in range(len(pool.missing(target)))
    ]
    granted = [head for _, head in sorted(wanted)[:total]]
    return [granted.count(head) for head in range(len(pools))]


def split_by_need(needed: list[int], total: int) -> list[int]:
    """Split admissions over layers in proportion to their misses, largest remainders rounded up."""
    if sum(needed) == 0:
        return [total // len(needed)] * len(needed)
    exact = [Fraction(total * misses, sum(needed)) for misses in needed]
    quotas = [int(share) for share in exact]
    by_remainder = sorted(
        range(len(needed)), key=lambda layer: (quotas[layer] - exact[layer], layer)
    )
    for layer in by_remainder[: total - sum(quotas)]:
        quotas[layer] += 1
    return quotas


def caps_of_step(
    pools: dict[Place, HeadPool],
    targets: dict[Place, list[int]],
    needed: dict[Place, int],
    rule: ResidencyRule,
) -> dict[Place, int]:
    """Return the admissions of every (layer, head) in a step; `needed` are the last step's."""
    cap = min(rule.cap_blocks, rule.pool_blocks)
    if not rule.cap_over_heads and not rule.cap_over_layers:
        return dict.fromkeys(pools, cap)
    layers = sorted({layer for layer, _ in pools})
    places = [sorted(place for place in pools if place[0] == layer) for layer in layers]
    totals = [cap * len(heads) for heads in places]
    if rule.cap_over_layers:
        totals = split_by_need(
            [sum(map(needed.__getitem__, heads)) for heads in places], sum(totals)
        )
    caps: dict[Place, int] = {}
    for heads, total in zip(places, totals, strict=True):
        granted = caps_of([pools[at] for at in heads], [targets[at] for at in heads], total)
        caps.update(zip(heads, granted, strict=True))
    return caps


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
    aims = _targets(pools, target_order, path)
    misses, caps = dict.fromkeys(pools, 0), dict.fromkeys(pools, 0)
    for step in range(path.steps):
        row, position = path.use_row[step], int(path.use_position[step])
        if step > 0:
            caps = caps_of_step(pools, aims[step], misses, rule)
        for place, pool in pools.items():
            pool.foresee([later[place] for later in aims[step + 1 :]])
            true_set = pool.choose(use_order[row][place], position)
            if step == 0:
                pool.fill(true_set)
            if step == path.first:
                start[place][list(pool.slot_of.values())] = list(pool.slot_of)
            target, fetched = true_set, list[int]()
            if step > 0:
                target = aims[step][place]
                misses[place], fetched = pool.advance(step, target, caps[place])
            pool.check()
            attended = pool.attended(target)
            if rule.least_attended and mass is not None:
                pool.observe(fetched, attended, position, mass[row][place])
            if step < path.first:
                continue
            at = (step - path.first, *place)
            needed[at], admitted[at] = misses[place], len(fetched)
            overlap[at] = len(attended & set(true_set))
            moved[int(np.ravel_multi_index(at, shape))] = [(b, pool.slot_of[b]) for b in fetched]
            if mass is not None:
                captured[at] = pool.captured(attended, position, mass[row][place])
    return ResidencyLog(
        needed, admitted, overlap, None if mass is None else captured, _pack(moved, start)
    )


def _targets(
    pools: dict[Place, HeadPool], target_order: Order, path: StepPath
) -> list[dict[Place, list[int]]]:
    """Return the targets of every step and head."""
    return [
        {
            place: pool.choose(target_order[row][place], int(position))
            for place, pool in pools.items()
        }
        for row, position in zip(path.target_row, path.target_position, strict=True)
    ]


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
