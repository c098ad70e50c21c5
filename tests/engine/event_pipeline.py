"""The step pipeline once more, as plain SimPy processes: the twin of the compiled recurrence."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from oasis_sim.engine.state import StepTimes
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
    """Run steps with one process per stream; `ends` collects the end of each step."""

    steps: Sequence[StepTimes]
    transfers: Sequence[Sequence[int]]
    env: simpy.Environment = field(default_factory=simpy.Environment)
    ends: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)

    def run(self) -> list[int]:
        """Simulate all steps and return their end times."""
        self.busy = [False, False, False]
        self.changed = self.env.event()
        self.done: dict[tuple[str, int, int], simpy.Event] = {}
        for body in (self._predict, self._select, self._transfer, self._copy_out):
            self.env.process(body())
        self.env.run(until=self.env.process(self._foreground()))
        return self.ends

    def event(self, what: str, step: int, layer: int = 0) -> simpy.Event:
        """Return the event of something having happened, made when first asked for."""
        key = (what, step, layer)
        if key not in self.done:
            self.done[key] = self.env.event()
        return self.done[key]

    def _mark(self, stream: int, busy: bool) -> None:
        self.busy[stream] = busy
        old, self.changed = self.changed, self.env.event()
        old.succeed()

    def _work(self, amount: int, rates: Sequence[int], covered: int = 0) -> Steps:
        """Do an amount of work, slower while the streams with a rate are busy.

        With `covered` it is done at the latest when it would be beside endless transfers, at that
        rate.
        """
        ways = [Progress(amount, [int(rate) for rate in rates])]
        if covered:
            others = [int(rate) for rate in rates]
            others[TRANSFER] = RATE_ONE
            ways.append(Progress(-(-(amount << RATE_BITS) // covered), others))
        while all(way.left() > 0 for way in ways):
            start, changed = self.env.now, self.changed
            needed = [time for way in ways if (time := way.needed(self.busy)) is not None]
            if needed:
                yield self.env.timeout(min(needed)) | changed
            else:
                yield changed
            for way in ways:
                way.passed(self.env.now - start)

    def _linear(self, amount: int, times: StepTimes) -> Steps:
        yield from self._work(amount, times.rates[LINEAR], times.covered)

    def _foreground(self) -> Steps:
        for t, times in enumerate(self.steps):
            attention = times.rates[ATTENTION]
            yield from self._linear(times.prefill, times)
            waited = 0
            for layer in range(len(self.transfers[t])):
                yield self.env.timeout(times.launch_per_layer)
                yield from self._linear(times.qkv, times)
                self.event("qkv", t, layer).succeed()
                asked = self.env.now
                if times.on_demand:
                    yield self.event("moved", t, layer)
                elif times.next_layer and layer > 0:
                    yield self.event("moved", t, layer - 1)
                elif t > 0:
                    last = len(self.transfers[t]) - 1
                    yield self.event("moved", t - 1, last if times.next_layer else layer)
                if times.correction:
                    yield self.event("corrected", t, layer)
                waited += self.env.now - asked
                yield from self._work(times.attention, attention)
                self.event("attention", t, layer).succeed()
                yield from self._linear(times.output_ffn, times)
            yield from self._linear(times.lm_head, times)
            yield from self._linear(times.draft, times)
            self.event("alone", t).succeed()
            asked = self.env.now
            if times.join:
                yield self.event("moved", t, len(self.transfers[t]) - 1)
            waited += self.env.now - asked
            yield self.env.timeout(times.launch_per_step)
            if t > 0 and self.steps[t - 1].d2h > 0:
                yield self.event("copied", t - 1)
            self.event("step", t).succeed()
            self.ends.append(self.env.now)
            self.waits.append(waited)

    def _predict(self) -> Steps:
        for t, times in enumerate(self.steps):
            for layer in range(len(self.transfers[t])):
                yield self.event("qkv", t, layer)
                visible = times.prediction > 0 and not times.on_demand
                if visible:
                    self._mark(PREDICTION, True)
                yield from self._work(times.prediction, times.rates[BACKGROUND])
                if visible:
                    self._mark(PREDICTION, False)
                self.event("predicted", t, layer).succeed()

    def _select(self) -> Steps:
        for t, times in enumerate(self.steps):
            for layer in range(len(self.transfers[t])):
                yield self.event("predicted", t, layer)
                visible = times.selection > 0 and not times.on_demand
                if visible:
                    self._mark(SELECTION, True)
                yield self.env.timeout(times.selection)
                if visible:
                    self._mark(SELECTION, False)
                self.event("selected", t, layer).succeed()

    def _transfer(self) -> Steps:
        for t, times in enumerate(self.steps):
            layers = len(self.transfers[t])
            for layer in range(layers):
                length = self.transfers[t][(layer + times.next_layer) % layers]
                yield self.event("selected", t, layer)
                part = (length * times.correction) >> RATE_BITS
                yield self.env.timeout(part)
                self.event("corrected", t, layer).succeed()
                length -= part
                visible = length > 0 and not times.on_demand
                if visible:
                    if not times.next_layer:
                        yield self.event("attention", t, layer)
                    self._mark(TRANSFER, True)
                yield from self._move(length, times, self.event("alone", t))
                if visible:
                    self._mark(TRANSFER, False)
                self.event("moved", t, layer).succeed()

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
