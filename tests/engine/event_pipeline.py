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

    def _work(self, amount: int, rates: Sequence[int]) -> Steps:
        """Do an amount of work, slower while the streams with a rate are busy.

        `spans` are [rate, time] with another rate each; progress is rounded down in each of them.
        """
        spans: list[list[int]] = []
        while amount > sum(rate * time >> RATE_BITS for rate, time in spans):
            rate = RATE_ONE
            for stream, factor in enumerate(rates):
                if self.busy[stream]:
                    rate = (rate * int(factor)) >> RATE_BITS
            if not spans or spans[-1][0] != rate:
                spans.append([rate, 0])
            left = amount - sum(rate * time >> RATE_BITS for rate, time in spans[:-1])
            start, changed = self.env.now, self.changed
            if rate > 0:
                needed = -(-(left << RATE_BITS) // rate) - spans[-1][1]
                yield self.env.timeout(needed) | changed
            else:
                yield changed
            spans[-1][1] += self.env.now - start
            # What begins and ends at one moment is no span of its own.
            while spans and spans[-1][1] == 0:
                spans.pop()

    def _foreground(self) -> Steps:
        for t, times in enumerate(self.steps):
            linear, attention = times.rates[LINEAR], times.rates[ATTENTION]
            yield from self._work(times.prefill, linear)
            waited = 0
            for layer in range(len(self.transfers[t])):
                yield self.env.timeout(times.launch_per_layer)
                yield from self._work(times.qkv, linear)
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
                yield from self._work(times.output_ffn, linear)
            yield from self._work(times.lm_head, linear)
            yield from self._work(times.draft, linear)
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
