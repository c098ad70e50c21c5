"""The resident blocks of one KV head as the paper tells it: sets, stamps and sorting.

Part of the reading version of the compiled core, ``oasis_sim.residency.plain``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oasis_sim.residency.arrays import MASS_UNITS
from oasis_sim.residency.observed import NEWEST_FETCH, NEWEST_STEP, UNREAD
from oasis_sim.residency.rule import ResidencyRule
from oasis_sim.trace.mass import decode_mass
from oasis_sim.trace.trace import NO_BLOCK, Order


@dataclass
class HeadPool:
    """Hold the resident blocks of one KV head: the slot and the last selection of each.

    With ``least_attended`` also the share of attention that each was read to hold, and the worth of
    fetches (as ``observed.py`` keeps them): as noted, and as decisions know them.
    """

    rule: ResidencyRule
    slot_of: dict[int, int] = field(default_factory=dict)
    stamp: dict[int, int] = field(default_factory=dict)
    next_use: dict[int, int] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    known: dict[int, float] = field(default_factory=dict)
    worth: float = UNREAD
    known_worth: float = UNREAD

    def choose(self, order: Order, position: int) -> list[int]:
        """Return the best k candidates of an order at a token position, best first."""
        candidates = range(self.rule.sink_blocks, self.rule.last_candidate(position) + 1)
        stored = [int(block) for block in order if block != NO_BLOCK]
        return [block for block in stored if block in candidates][: self.rule.chosen_blocks]

    def fill(self, true_set: list[int]) -> None:
        """Start with the true set, best block in slot 0."""
        self.slot_of = {block: slot for slot, block in enumerate(true_set)}
        self.stamp = dict.fromkeys(true_set, 0)

    def foresee(self, later: list[list[int]]) -> None:
        """Learn the targets of the steps to come: when each resident block is selected again."""
        if self.rule.belady:
            self.next_use = {
                block: next((step for step, aim in enumerate(later) if block in aim), len(later))
                for block in self.slot_of
            }

    def eviction_order(self, target: list[int]) -> list[int]:
        """Return resident blocks outside the target, the least recently selected first.

        With ``belady`` the one that is selected again last comes first; ``next_use`` says when.
        With ``least_attended`` the one that attention gave least; those not read yet come last.
        """
        outside = set(self.slot_of) - set(target)
        if self.rule.belady:
            return sorted(outside, key=lambda block: (-self.next_use[block], block))
        if self.rule.least_attended:
            return sorted(outside, key=lambda block: (self.known.get(block, UNREAD), block))
        return sorted(outside, key=lambda block: (self.stamp[block], block))

    def missing(self, target: list[int]) -> list[int]:
        """Return the blocks of the target that are not resident and may be admitted."""
        eligible = [block for block in target[: self.rule.depth] if block not in self.slot_of]
        if not self.rule.gainful:
            return eligible
        known = [self.known.get(block, UNREAD) for block in self.eviction_order(target)]
        poor = sum(share <= self.known_worth for share in known)
        return eligible[: self.rule.pool_blocks - len(self.slot_of) + poor]

    def advance(
        self, step: int, target: list[int], cap: int | None = None
    ) -> tuple[int, list[int]]:
        """Move the pool towards a target; return the number needed and the blocks admitted.

        `cap` takes the place of the rule's.
        """
        needed = [block for block in target if block not in self.slot_of]
        admitted = self.missing(target)[: self.rule.cap_blocks if cap is None else cap]
        excess = max(0, len(self.slot_of) + len(admitted) - self.rule.pool_blocks)
        victims = self.eviction_order(target)[:excess]
        used = set(self.slot_of.values())
        free = [slot for slot in range(self.rule.pool_blocks) if slot not in used]
        slots = free + [self.slot_of.pop(victim) for victim in victims]
        for victim in victims:
            del self.stamp[victim]
            self.held.pop(victim, None)
            self.known.pop(victim, None)
        self.slot_of.update(zip(admitted, slots, strict=False))
        for block in target:
            if block in self.slot_of:
                self.stamp[block] = step
        return len(needed), admitted

    def attended(self, target: list[int]) -> set[int]:
        """Return the blocks that attention reads: the pool, at most k, the target preferred."""
        excess = max(0, len(self.slot_of) - self.rule.chosen_blocks)
        return set(self.slot_of) - set(self.eviction_order(target)[:excess])

    def read_blocks(self, attended: set[int], position: int, blocks: int) -> list[int]:
        """Return the attended and the always resident blocks of the first `blocks`."""
        last = self.rule.last_candidate(position)
        existing = range(min(blocks, position // self.rule.block_tokens + 1))
        chosen = {block for block in attended if block <= last}
        always = {*range(self.rule.sink_blocks), *range(last + 1, len(existing))}
        return [block for block in existing if block in always or block in chosen]

    def captured(self, attended: set[int], position: int, codes: NDArray[np.uint8]) -> float:
        """Return the mass of all that was read; `codes` uint8[NB]."""
        read = self.read_blocks(attended, position, len(codes))
        return float(decode_mass(codes[read]).sum())

    def observe(
        self, admitted: list[int], attended: set[int], position: int, codes: NDArray[np.uint8]
    ) -> None:
        """Note the share that each attended block held of what was read; `codes` uint8[NB].

        What was noted in the step before is known from now on.
        """
        self.known, self.known_worth = dict(self.held), self.worth
        units = [round(float(mass) * MASS_UNITS) for mass in decode_mass(codes)]
        whole = max(
            1, sum(units[block] for block in self.read_blocks(attended, position, len(units)))
        )
        existing = range(min(len(units), position // self.rule.block_tokens + 1))
        for block in attended & set(existing):
            share = units[block] / whole
            held = self.held.get(block, share)
            self.held[block] = held + (share - held) * NEWEST_STEP
        for share in [self.held[block] for block in admitted if block in existing]:
            worth = share if self.worth == UNREAD else self.worth
            self.worth = worth + (share - worth) * NEWEST_FETCH

    def check(self) -> None:
        """Raise AssertionError when the pool breaks one of its promises."""
        slots = list(self.slot_of.values())
        assert len(slots) <= self.rule.pool_blocks, "more blocks than the pool holds"
        assert len(set(slots)) == len(slots), "two blocks in one slot"
        assert all(0 <= slot < self.rule.pool_blocks for slot in slots), "slot outside the pool"
        assert set(self.stamp) == set(self.slot_of), "a stamp without a block, or the reverse"
