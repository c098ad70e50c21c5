"""Micro-benchmarks as data: what to measure, who measures it, and how often it must agree.

A step probe runs the decode step with most stages switched off, so that one kind of kernel, a pair
or three that share the GPU are left; its figure is the time of the whole step. A stage probe times
one of them inside that step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol

from gpu_exec.rounds import (
    HOST_ROUNDS,
    LONG,
    LONG_ROUNDS,
    SPREAD_ROUNDS,
    Rounds,
    mean_of,
    take_rounds,
)
from oasis_sim.errors import RunFailed

SPREAD_EVERY = 4
"""Steps that are measured between two rounds of what is spread."""

LINEAR, ATTENTION, SCAN = "linear", "attention", "scan"
SELECTION, TRANSFER, DRAFT, MIRROR = "selection", "transfer", "draft", "mirror"


@dataclass(frozen=True)
class StepProbe:
    """Run a step with only `stages` on; `per_head` blocks are moved per row, head and layer."""

    stages: tuple[str, ...]
    batch: int
    context_tokens: int = 12_288
    block_tokens: int = 16
    budget_tokens: int = 2_048
    transport: str = "sm_gather"
    per_head: float = 0.0
    dense: bool = False

    @property
    def copies_by_host(self) -> bool:
        """True when the host submits the copies of the step."""
        return TRANSFER in self.stages and self.transport != "sm_gather"

    def __str__(self) -> str:
        """Say what runs, on how much."""
        moved = f", {self.per_head:.3g} blocks per head by {self.transport}" * (self.per_head > 0)
        return (
            f"{' + '.join(self.stages)} of {self.batch} {'dense ' * self.dense}requests of "
            f"{self.context_tokens:,} tokens, budget {self.budget_tokens:,}, blocks of "
            f"{self.block_tokens}{moved}"
        )


@dataclass(frozen=True)
class StageProbe(StepProbe):
    """Time one stage of such a step by clocks in it, summed over the layers (see `marks`)."""

    stage: str = "attention"

    def __str__(self) -> str:
        """Say which stage, and what runs."""
        return f"stage {self.stage} of {super().__str__()}"

    @property
    def step(self) -> StepProbe:
        """The step that the stage is timed in."""
        values = {part.name: getattr(self, part.name) for part in fields(StepProbe)}
        return StepProbe(**values)


def stage_of(step: StepProbe, stage: str) -> StageProbe:
    """Return the probe of one stage of a step."""
    values = {part.name: getattr(step, part.name) for part in fields(StepProbe)}
    return StageProbe(**values, stage=stage)


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

    def measure_ms(self, probe: Probe, length: int, /) -> float:
        """Return the typical time of a round of `length` times the usual one, in ms."""


class Notebook:
    """Measure each probe once, in rounds that must agree, and keep every round."""

    def __init__(self, bench: Bench, progress: Callable[[str], None] | None = None) -> None:
        """Measure with `bench`; `progress` hears of each reading."""
        self.bench = bench
        self._progress = progress
        self._spread: dict[Probe, list[float]] = {}
        self.readings: dict[Probe, Rounds] = {}

    @property
    def unstable(self) -> dict[Probe, Rounds]:
        """The readings that did not come to agree."""
        return {probe: found for probe, found in self.readings.items() if not found.repeatable}

    def spread(self, probe: Probe) -> None:
        """Take rounds of a probe from now on between those of others, until it is asked for."""
        self._spread[probe] = []

    def ms(self, probe: Probe) -> float:
        """Return the time of a probe."""
        if probe not in self.readings:
            self.readings[probe] = self._measure(probe)
            if self._progress is not None:
                self._progress(f"{probe}: {self.readings[probe].value_ms:.4f} ms")
            steps = sum(type(known) is StepProbe for known in self.readings)
            if type(probe) is StepProbe and steps % SPREAD_EVERY == 0:
                for waiting, rounds in self._spread.items():
                    rounds.append(self._round(waiting, LONG))
        return self.readings[probe].value_ms

    def _measure(self, probe: Probe) -> Rounds:
        rounds = self._spread.pop(probe, None)
        if rounds is None:
            submitted = isinstance(probe, StepProbe) and probe.copies_by_host
            return take_rounds(
                partial(self._round, probe), HOST_ROUNDS if submitted else LONG_ROUNDS
            )
        missing = max(0, SPREAD_ROUNDS - len(rounds))
        return mean_of([*rounds, *(self._round(probe, LONG) for _ in range(missing))])

    def _round(self, probe: Probe, length: int) -> float:
        time = self.bench.measure_ms(probe, length)
        if time <= 0:
            raise RunFailed(f"{probe} took no time; the measurement is broken")
        return time
