"""Micro-benchmarks as data: what to measure, who measures it, and how often it must agree.

A step probe runs the decode step with most stages switched off, so that one kind of kernel (or
one pair that shares the GPU) is left; its figure is the time of the whole step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from oasis_sim.errors import RunFailed

REPEAT_BOUND_PCT = 3.0
ROUNDS = 3
LENGTHS = (1, 2, 4, 8)
"""Of rounds: `ROUNDS` of each, longer ones only where the shorter disagree."""

LINEAR, ATTENTION, SCAN = "linear", "attention", "scan"
SELECTION, TRANSFER, DRAFT, MIRROR = "selection", "transfer", "draft", "mirror"


@dataclass(frozen=True)
class StepProbe:
    """Run a step with only `stages` on; `per_head` blocks are moved per row, head and layer.

    Every layer rests for `pause_us` after its QKV, before its transfer may start: in that time the
    transfer of the layer before it may end, and nothing else runs.
    """

    stages: tuple[str, ...]
    batch: int
    context_tokens: int = 12_288
    block_tokens: int = 16
    budget_tokens: int = 2_048
    transport: str = "sm_gather"
    per_head: float = 0.0
    dense: bool = False
    pause_us: float = 0.0

    def __str__(self) -> str:
        """Say what runs, on how much."""
        moved = f", {self.per_head:.3g} blocks per head by {self.transport}" * (self.per_head > 0)
        return (
            f"{' + '.join(self.stages)} of {self.batch} {'dense ' * self.dense}requests of "
            f"{self.context_tokens:,} tokens, budget {self.budget_tokens:,}, blocks of "
            f"{self.block_tokens}{moved}{f', pauses of {self.pause_us:g} us' * (self.pause_us > 0)}"
        )


@dataclass(frozen=True)
class LinkProbe:
    """Copy `size_bytes` in one piece between pinned memory and the device ("h2d" or "d2h")."""

    direction: str
    size_bytes: int

    def __str__(self) -> str:
        """Say what is copied."""
        return f"one {self.direction} copy of {self.size_bytes:,} bytes"


@dataclass(frozen=True)
class ReadProbe:
    """Read `size_bytes` of HBM once."""

    size_bytes: int

    def __str__(self) -> str:
        """Say what is read."""
        return f"one read of {self.size_bytes:,} bytes of HBM"


@dataclass(frozen=True)
class GapProbe:
    """Time one node of a CUDA graph of `nodes` empty kernels."""

    nodes: int = 1_000

    def __str__(self) -> str:
        """Say what is timed."""
        return f"a graph of {self.nodes:,} empty kernels"


Probe = StepProbe | LinkProbe | ReadProbe | GapProbe


@dataclass(frozen=True)
class Nodes:
    """Count the graph nodes of the foreground per layer."""

    linear: int
    attention: int


@dataclass(frozen=True)
class Card:
    """Name the card and what the driver says of it."""

    name: str
    driver: str
    sms: int
    hbm_bytes: int
    software: str


class Bench(Protocol):
    """Measure probes on one card."""

    card: Card
    nodes: Nodes

    def measure_ms(self, probe: Probe, length: int, /) -> float:
        """Return the typical time of a round of `length` times the usual one, in ms."""


@dataclass(frozen=True)
class Reading:
    """Hold the median of one probe's longest rounds, their range in percent of it, and all rounds.

    `rounds_ms` are in the order of time: `ROUNDS` for each of the `LENGTHS` that were taken.
    """

    probe: Probe
    value_ms: float
    spread_pct: float
    rounds_ms: tuple[float, ...]


class Notebook:
    """Measure each probe once, in rounds that must agree, and keep every round."""

    def __init__(self, bench: Bench, progress: Callable[[str], None] | None = None) -> None:
        """Measure with `bench`; `progress` hears of each reading."""
        self.bench = bench
        self._progress = progress
        self.readings: dict[Probe, Reading] = {}

    @property
    def unstable(self) -> list[Reading]:
        """The readings whose rounds, even the longest, differ by more than the bound."""
        return [r for r in self.readings.values() if r.spread_pct > REPEAT_BOUND_PCT]

    def ms(self, probe: Probe) -> float:
        """Return the time of a probe: the median of its last rounds."""
        if probe not in self.readings:
            self.readings[probe] = self._measure(probe)
            if self._progress is not None:
                self._progress(f"{probe}: {self.readings[probe].value_ms:.4f} ms")
        return self.readings[probe].value_ms

    def _measure(self, probe: Probe) -> Reading:
        """Take rounds of one length after the other until all of a length lie within the bound."""
        rounds: list[float] = []
        middle = spread = 0.0
        for length in LENGTHS:
            rounds += [self.bench.measure_ms(probe, length) for _ in range(ROUNDS)]
            last = rounds[-ROUNDS:]
            if min(last) <= 0:
                raise RunFailed(f"{probe} took no time; the measurement is broken")
            middle = statistics.median(last)
            spread = 100.0 * (max(last) - min(last)) / middle
            if spread <= REPEAT_BOUND_PCT:
                break
        return Reading(probe, middle, spread, tuple(rounds))
