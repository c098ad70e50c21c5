"""The step pipeline once more, as plain SimPy processes: the twin of the compiled recurrence."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from oasis_sim.engine.state import DRAFT, LM_HEAD, QKV, StepTimes
from oasis_sim.engine.streams import (
    ATTENTION,
    BACKGROUND,
    LINEAR,
    PREDICTION,
    RATE_BITS,
    RATE_ONE,
    SELECTION,
    TRANSFER,
)

Steps = Generator[simpy.Event, Any, Any]


@dataclass
class Progress:
    """Follow an amount of work; `spans` are [rate, time], progress is rounded down in each."""

    amount: int
    rates: Sequence[int]
    spans: list[list[int]] = field(default_factory=list)

    def left(self, spans: int | None = None) -> int:
        """Return the work left after all spans, or after the first of them."""
        return self.amount - sum(rate * time >> RATE_BITS for rate, time in self.spans[:spans])

    def needed(self, busy: Sequence[bool]) -> int | None:
        """Begin a span, or go on with one of the same rate; return the time to its end, if any."""
        rate = RATE_ONE
        for stream, factor in enumerate(self.rates):
            if busy[stream]:
                rate = (rate * factor) >> RATE_BITS
        if not self.spans or self.spans[-1][0] != rate:
            self.spans.append([rate, 0])
        if rate == 0:
            return None
        return -(-(self.left(-1) << RATE_BITS) // rate) - self.spans[-1][1]

    def passed(self, time: int) -> None:
        """Add time to the last span; what begins and ends at one moment is no span."""
        self.spans[-1][1] += time
        while self.spans and self.spans[-1][1] == 0:
            self.spans.pop()


@dataclass
class EventPipeline:
    """Run steps with one process per rank and stream.

    `transfers` are durations by step, rank and layer. `ends`, `waits` and `predicted` collect each
    step's end, how long its foreground waits, and its prediction in the foreground.
    """

    steps: Sequence[StepTimes]
    transfers: Sequence[Sequence[Sequence[int]]]
    env: simpy.Environment = field(default_factory=simpy.Environment)
    ends: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)

    def run(self) -> list[int]:
        """Simulate all steps and return their end times."""
        self.ranks, self.layers = len(self.transfers[0]), len(self.transfers[0][0])
        self.busy = [[False, False, False] for _ in range(self.ranks)]
        self.changed = [self.env.event() for _ in range(self.ranks)]
        self.done: dict[tuple[object, ...], simpy.Event] = {}
        self.came: dict[tuple[object, ...], list[int]] = {}
        self.env.process(self._copy_out())
        for rank in range(self.ranks):
            for body in (self._predict, self._select, self._transfer):
                self.env.process(body(rank))
        parts = [self.env.process(self._foreground(rank)) for rank in range(self.ranks)]
        self.env.run(until=self.env.all_of(parts))
        return self.ends

    def event(self, *key: object) -> simpy.Event:
        """Return the event of something having happened, made when first asked for."""
        if key not in self.done:
            self.done[key] = self.env.event()
        return self.done[key]

    def _meet(self, *key: object) -> simpy.Event:
        """Come to a collective; return the event of all ranks being there."""
        here = self.came.setdefault(key, [])
        here.append(self.env.now)
        if len(here) == self.ranks:
            self.event("met", *key).succeed()
        return self.event("met", *key)

    def _mark(self, rank: int, stream: int, busy: bool) -> None:
        self.busy[rank][stream] = busy
        old, self.changed[rank] = self.changed[rank], self.env.event()
        old.succeed()

    def _work(self, rank: int, amount: int, rates: Sequence[int], covered: int = 0) -> Steps:
        """Do an amount of work, slower while the rank's streams with a rate are busy.

        With `covered` it is done at the latest when it would be beside endless transfers, at that
        rate.
        """
        ways = [Progress(amount, [int(rate) for rate in rates])]
        if covered:
            others = [int(rate) for rate in rates]
            others[TRANSFER] = RATE_ONE
            ways.append(Progress(-(-(amount << RATE_BITS) // covered), others))
        while all(way.left() > 0 for way in ways):
            start, changed = self.env.now, self.changed[rank]
            needed = [time for way in ways if (time := way.needed(self.busy[rank])) is not None]
            if needed:
                yield self.env.timeout(min(needed)) | changed
            else:
                yield changed
            for way in ways:
                way.passed(self.env.now - start)

    def _linear(self, rank: int, amount: int, times: StepTimes) -> Steps:
        yield from self._work(rank, amount, times.rates[LINEAR], times.covered)

    def _own(self, rank: int, amount: int, times: StepTimes, row: int) -> Steps:
        if times.own[row, TRANSFER] < 0:
            yield from self._linear(rank, amount, times)
        else:
            yield from self._work(rank, amount, times.own[row])

    def _foreground(self, rank: int) -> Steps:
        for t, times in enumerate(self.steps):
            yield from self._linear(rank, times.prefill, times)
            yield self._meet("prefill", t)
            for layer in range(self.layers):
                yield from self._layer(rank, t, layer)
            ends = ((LM_HEAD, "lm_head", times.lm_head), (DRAFT, "draft", times.draft))
            for row, name, work in ends:
                yield from self._own(rank, work, times, row)
                yield self._meet(name, t)
            alone = self.event("alone", t)
            if not alone.triggered:
                alone.succeed()
            asked = self.env.now
            if times.join:
                yield self.event("moved", rank, t, self.layers - 1)
            yield self._meet("joined", t)
            waited = self.env.now - asked
            yield self.env.timeout(times.launch_per_step)
            if t > 0 and self.steps[t - 1].d2h > 0:
                yield self.event("copied", t - 1)
            if rank == 0:
                self.event("step", t).succeed()
                self.ends.append(self.env.now)
                self.waits.append(waited + self._between("asked", "ready", t))
                self.predicted.append(self._between("projected", "asked", t))
            yield self._meet("end", t)

    def _between(self, first: str, then: str, t: int) -> int:
        """Return the time from the last rank at one point to the last at another, all layers."""
        return sum(
            max(self.came[then, t, layer]) - max(self.came[first, t, layer])
            for layer in range(self.layers)
        )

    def _layer(self, rank: int, t: int, layer: int) -> Steps:
        times = self.steps[t]
        yield self.env.timeout(times.launch_per_layer)
        yield from self._own(rank, times.qkv, times, QKV)
        self.event("qkv", rank, t, layer).succeed()
        self._meet("projected", t, layer)
        if times.inline:
            yield self.event("predicted", rank, t, layer)
        self._meet("asked", t, layer)
        if times.on_demand:
            yield self.event("moved", rank, t, layer)
        elif times.next_layer and layer > 0:
            yield self.event("moved", rank, t, layer - 1)
        elif t > 0:
            before = self.layers - 1 if times.next_layer else layer
            yield self.event("moved", rank, t - 1, before)
        if times.correction:
            yield self.event("corrected", rank, t, layer)
        self._meet("ready", t, layer)
        yield from self._work(rank, times.attention, times.rates[ATTENTION])
        self.event("attention", rank, t, layer).succeed()
        yield self._meet("attended", t, layer)
        yield self.env.timeout(times.collective // 2)
        yield from self._linear(rank, times.output_ffn, times)
        yield self._meet("layer", t, layer)
        yield self.env.timeout(times.collective - times.collective // 2)

    def _predict(self, rank: int) -> Steps:
        for t, times in enumerate(self.steps):
            for layer in range(self.layers):
                yield self.event("qkv", rank, t, layer)
                beside = not times.on_demand and not times.inline
                visible = times.prediction > 0 and beside
                if visible:
                    self._mark(rank, PREDICTION, True)
                yield from self._work(rank, times.prediction, times.rates[BACKGROUND])
                if visible:
                    self._mark(rank, PREDICTION, False)
                self.event("predicted", rank, t, layer).succeed()

    def _select(self, rank: int) -> Steps:
        for t, times in enumerate(self.steps):
            for layer in range(self.layers):
                yield self.event("predicted", rank, t, layer)
                visible = times.selection > 0 and not times.on_demand
                if visible:
                    self._mark(rank, SELECTION, True)
                yield self.env.timeout(times.selection)
                if visible:
                    self._mark(rank, SELECTION, False)
                self.event("selected", rank, t, layer).succeed()

    def _transfer(self, rank: int) -> Steps:
        for t, times in enumerate(self.steps):
            for layer in range(self.layers):
                length = self.transfers[t][rank][(layer + times.next_layer) % self.layers]
                yield self.event("selected", rank, t, layer)
                part = (length * times.correction) >> RATE_BITS
                yield self.env.timeout(part)
                self.event("corrected", rank, t, layer).succeed()
                length -= part
                visible = length > 0 and not times.on_demand
                if visible:
                    if not times.next_layer:
                        yield self.event("attention", rank, t, layer)
                    self._mark(rank, TRANSFER, True)
                yield from self._move(length, times, self.event("alone", t))
                if visible:
                    self._mark(rank, TRANSFER, False)
                self.event("moved", rank, t, layer).succeed()

    def _move(self, length: int, times: StepTimes, alone: simpy.Event) -> Steps:
        """Move for `length`, sooner when nothing else of a joined step is left."""
        if not times.join:
            yield self.env.timeout(length)
            return
        start = self.env.now
        if not alone.triggered:
            yield self.env.timeout(length) | alone
        left = length - (self.env.now - start)
        yield self.env.timeout(left * times.idle >> RATE_BITS)

    def _copy_out(self) -> Steps:
        for t, times in enumerate(self.steps):
            yield self.event("step", t)
            yield self.env.timeout(times.d2h)
            self.event("copied", t).succeed()
