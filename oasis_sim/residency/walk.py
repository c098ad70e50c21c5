"""How a short trace feeds a long run: a cyclic walk in its steady state.

A trace of T steps holds T - 1 targets A(1) .. A(T-1), A(s) being the prediction made for step s.
The walk goes forward 1 .. T-1, then backward T-2 .. 1, and so on, with period W = 2 (T-2). A
neighbour in the walk is a neighbour in the trace, in one direction or the other, so the number
of blocks that change from step to step is that of the trace, and there is no jump. (Wrapping
round from the last step to the first would replace most of the set at once.) The pool forgets
its start within a period or two; the table holds the period after that, and requests start at
different places in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.residency.captured import captured_share, known_mean
from oasis_sim.residency.mapping import HeadMap, map_heads
from oasis_sim.residency.predict import (
    CURRENT,
    PREVIOUS,
    accepted_drafts,
    check_stored_length,
    target_source,
)
from oasis_sim.residency.route import check_steps, visited_steps, walk_steps
from oasis_sim.residency.rule import Moves, ResidencyLog, ResidencyRule, StepPath
from oasis_sim.residency.simulate import simulate_path, total_mass
from oasis_sim.trace.trace import AttentionTrace

if TYPE_CHECKING:
    from oasis_sim.model import ModelShape

SHORT_WARMUP = 2
LONG_WARMUP = 6


@dataclass(frozen=True, eq=False)
class WalkTable:
    """Hold one steady period of the walk, mapped to the run's model.

    Counts are per request, step and model layer: ``admitted_by_head`` of each of the model's KV
    heads, the others summed over them. The quality proxies are means over layers and heads for each
    walk step; ``_p5`` and ``_p95`` are taken over all steps, layers and heads. ``overlap`` is the
    share of the true query's blocks that were attended; ``mass`` the share of the step's attention
    mass that was read; ``lost`` the rest. Both are None when the trace holds no mass. ``steady``
    says whether the period repeats exactly.
    """

    admitted_by_head: NDArray[np.uint16]  # [W, model layers, model heads]
    needed: NDArray[np.int32]  # [W, model layers]
    overlap: NDArray[np.float64]  # [W]
    mass: NDArray[np.float64] | None  # [W]
    lost: NDArray[np.float64] | None  # [W]
    mass_p5: float | None
    lost_p95: float | None
    trace_step: NDArray[np.int32]  # [W] step of the trace that each walk step replays
    tokens: NDArray[np.int32]  # [W] tokens that a request gains in each walk step
    warmup_periods: int
    steady: bool

    @property
    def period(self) -> int:
        """Return W."""
        return len(self.trace_step)

    @property
    def admitted(self) -> NDArray[np.int64]:
        """Return the admitted blocks of all KV heads together, int64[W, model layers]."""
        return np.asarray(self.admitted_by_head.sum(axis=2, dtype=np.int64))

    @property
    def overlap_mean(self) -> float:
        """Return the mean share of the true set that was attended."""
        return float(self.overlap.mean())

    @property
    def mass_mean(self) -> float | None:
        """Return the mean captured mass."""
        return None if self.mass is None else float(self.mass.mean())

    @property
    def lost_mean(self) -> float | None:
        """Return the mean mass of blocks not read."""
        return None if self.lost is None else float(self.lost.mean())


@dataclass(frozen=True, eq=False)
class WalkMoves:
    """Hold the moves of one request over some walk steps, for every layer and head of the model.

    ``pool`` uint16[model layers, model heads, P] is what each slot holds before the first of
    them (65535 = free).
    """

    pool: NDArray[np.uint16]
    steps: int
    _moves: Moves
    _heads: HeadMap

    def layer(
        self, step: int, layer: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint16]]:
        """Return (head, block, slot) of each block admitted in a step by a model layer.

        Ordered by head, then by admission. `step` counts from 0.
        """
        part = self._heads.part
        first = (step * part.layers + int(self._heads.layer[layer])) * part.kv_heads
        bounds = self._moves.offset[first : first + part.kv_heads + 1]
        sizes = np.diff(bounds)[self._heads.head]
        spans = [slice(bounds[head], bounds[head + 1]) for head in self._heads.head]
        return (
            np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes),
            np.concatenate([self._moves.block[span] for span in spans]),
            np.concatenate([self._moves.slot[span] for span in spans]),
        )


def build_walk(
    trace: AttentionTrace,
    rule: ResidencyRule,
    predictor: str,
    drafter: str | None,
    model: ModelShape,
    *,
    speculative: bool = False,
) -> WalkTable:
    """Simulate the walk to its steady state and map one period to a model.

    `predictor` is draft, previous, current or oracle; `drafter` names one of the trace's
    (None: the first). A `speculative` walk visits only steps whose token was not drafted and
    accepted before, each predicted by the draft of the step visited before it. With
    ``rule.on_demand`` the target is the step's own order. Raises InputError when the trace is too
    short, or stores too few blocks, or has another block size.
    """
    heads = map_heads(trace, model.layers, model.kv_heads)
    walk = _Walk(heads.part, rule, predictor, drafter, speculative=speculative)
    # Averages of attention settle too slowly for a short warm-up to be worth a try.
    warmup = LONG_WARMUP if rule.least_attended else SHORT_WARMUP
    log = walk.simulate(first=(warmup - 1) * walk.period, steps=2 * walk.period)
    steady = _repeats(log, walk.period)
    if not steady and warmup < LONG_WARMUP:
        warmup = LONG_WARMUP
        log = walk.simulate(first=(warmup - 1) * walk.period, steps=2 * walk.period)
        steady = _repeats(log, walk.period)
    table = slice(walk.period, None)
    overlap = log.overlap[table] / np.maximum(walk.true_set_sizes(), 1)[:, None, None]
    mass, lost = None, None
    if log.mass is not None and heads.part.mass is not None:
        total = total_mass(heads.part.mass, walk.trace_step.astype(np.int64))
        share = heads.expand(captured_share(log.mass[table], total))
        # A trace without any mass says as little as one that does not store it.
        mass, lost = (None, None) if np.isnan(share).all() else (share, 1.0 - share)
    return WalkTable(
        admitted_by_head=heads.expand(log.admitted[table]).astype(np.uint16),
        needed=heads.sum_heads(log.needed[table]).astype(np.int32),
        overlap=heads.expand(overlap).mean(axis=(1, 2)),
        mass=None if mass is None else known_mean(mass),
        lost=None if lost is None else known_mean(lost),
        mass_p5=None if mass is None else float(np.nanpercentile(mass, 5)),
        lost_p95=None if lost is None else float(np.nanpercentile(lost, 95)),
        trace_step=walk.trace_step,
        tokens=walk.tokens,
        warmup_periods=warmup,
        steady=steady,
    )


def walk_moves(
    trace: AttentionTrace,
    rule: ResidencyRule,
    predictor: str,
    drafter: str | None,
    model: ModelShape,
    table: WalkTable,
    window: range,
) -> WalkMoves:
    """Return the moves behind the rows `window` of a table, with their slots.

    `window` counts walk steps; it may start anywhere and run past the period, as a request does.
    The other arguments are those that built the table. While ``table.steady`` holds, or the
    window stays within one period, the moves are exactly the table's counts.
    """
    heads = map_heads(trace, model.layers, model.kv_heads)
    walk = _Walk(heads.part, rule, predictor, drafter)
    first = table.warmup_periods * walk.period + window.start % walk.period
    log = walk.simulate(first=first, steps=len(window), moves=True)
    assert log.moves is not None
    pool = log.moves.start[heads.layer][:, heads.head]
    return WalkMoves(pool, len(window), log.moves, heads)


class _Walk:
    """Walk one trace under one rule and predictor."""

    def __init__(
        self,
        trace: AttentionTrace,
        rule: ResidencyRule,
        predictor: str,
        drafter: str | None,
        *,
        speculative: bool = False,
    ) -> None:
        """Find the predictor's orders and check that the trace can serve the rule."""
        _check_walk(trace, rule)
        self.trace = trace
        self.rule = rule
        self.previous = predictor == PREVIOUS and not rule.on_demand
        self.targets, self.ahead = target_source(
            trace, CURRENT if rule.on_demand else predictor, drafter
        )
        check_stored_length(trace, trace.use_order, rule, 0)
        if self.targets is not trace.use_order:
            check_stored_length(trace, self.targets, rule, self.ahead)
        visited = np.arange(trace.steps, dtype=np.int32)
        self.tokens = np.ones(len(walk_steps(trace.steps)), dtype=np.int32)
        if speculative:
            accepted = accepted_drafts(trace, drafter)
            visited = visited_steps(accepted)
            check_steps(trace, len(visited))
        place = walk_steps(len(visited))
        self.trace_step = visited[place]
        self._source_step = visited[place - self.ahead]
        if speculative:
            self.tokens = 1 + (accepted[self.trace_step] != 0).astype(np.int32)

    @property
    def period(self) -> int:
        """Return the steps of one period."""
        return len(self.trace_step)

    def true_set_sizes(self) -> NDArray[np.int64]:
        """Return |U| of each walk step, int64[W]."""
        block, rule = self.rule.block_tokens, self.rule
        last = self.trace.position.astype(np.int64) // block - max(rule.recent_blocks, 1)
        sizes = np.clip(last - rule.sink_blocks + 1, 0, rule.chosen_blocks)
        return np.asarray(sizes[self.trace_step], dtype=np.int64)

    def simulate(self, *, first: int, steps: int, moves: bool = False) -> ResidencyLog:
        """Run from the start of the walk; report `steps` steps from the `first` on."""
        # Eviction that knows the future sees one more period of it than is reported.
        margin = self.period if self.rule.belady else 0
        places = np.arange(first + steps + margin) % self.period
        rows = self.trace_step[places].astype(np.int64)
        position = self.trace.position.astype(np.int64)
        source = np.roll(rows, 1) if self.previous else self._source_step[places].astype(np.int64)
        path = StepPath(rows, position[rows], source, position[source] + self.ahead, first)
        log = simulate_path(
            self.trace.use_order,
            self.targets,
            path,
            self.rule,
            mass=self.trace.mass,
            moves=moves,
        )
        return ResidencyLog(
            log.needed[:steps],
            log.admitted[:steps],
            log.overlap[:steps],
            None if log.mass is None else log.mass[:steps],
            log.moves,
        )


def _repeats(log: ResidencyLog, period: int) -> bool:
    """Tell whether two periods of a log are equal in every count."""
    pairs: list[NDArray[Any]] = [log.needed, log.admitted, log.overlap]
    return all(np.array_equal(array[:period], array[period:]) for array in pairs)


def _check_walk(trace: AttentionTrace, rule: ResidencyRule) -> None:
    """Refuse a trace that is too short, cut into other blocks, or without a mass that is read."""
    check_steps(trace, trace.steps)
    if rule.least_attended and trace.mass is None:
        raise InputError(
            "holds no attention mass, by which the least attended block would be evicted",
            file=trace.name,
            field="mass",
            fix="use evict least_recently_selected, or record the trace with its mass",
        )
    if trace.block_tokens != rule.block_tokens:
        raise InputError(
            f"was recorded in blocks of {trace.block_tokens} tokens, not {rule.block_tokens}",
            file=trace.name,
            field="block_tokens",
            fix=f"use a block size of {trace.block_tokens}, or record the trace again",
        )
