"""Time the stages inside a captured step: the GPU's clock before and after each, or nothing.

A stage is enclosed by two kernels of one thread that write the clock. Timing events would do the
same at less effort, but beside a gather each of them waits for its reads over PCIe, up to 90 us
that no step without events has.

A clock takes time of its own, that of launching an empty kernel: empty spans, one per layer behind
output and FFN, tell how long. It is taken off every span for each clock that lies in it, and once
more for the launch of the span's first kernel. So a stage is its kernels and the gaps between them;
the gap before the first of them lies between stages.

On streams that yield to the compute stream a clock would wait until the SMs have room again, after
most of the attention. Kernels there write themselves when their first block starts and their last
one ends. Attention, which is launched early in a step without clocks, comes before selection: a
clock in front of selection, which is not read, sees to that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpu_exec.kernels.library import launch, pointer, wide
from oasis_sim.errors import RunFailed

EMPTY = "empty"
NS_PER_MS = 1e6
SPAN_CLOCKS, INSIDE_CLOCKS = 22, 4
"""Per layer, at most."""
STEP_CLOCKS = 16
NEVER = 2**63 - 1


@contextmanager
def named(text: str) -> Iterator[None]:
    """Name what the host does inside for profilers (NVTX)."""
    import torch

    torch.cuda.nvtx.range_push(text)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


class Marks:
    """Name every span and do not time it: the form for timing whole steps."""

    @contextmanager
    def span(self, stage: str, layer: int) -> Iterator[None]:
        """Enclose the launches of one stage and layer."""
        with named(f"{stage} {layer}"):
            yield

    @contextmanager
    def inside(self, stage: str, layer: int, *, behind: bool = False) -> Iterator[Any]:
        """Enclose the launch of one kernel and give it the place of its own clock, if any.

        What is `behind` the compute stream's next kernel without clocks is so with them.
        """
        del behind
        with named(f"{stage} {layer}"):
            yield None

    def rest(self, _layer: int) -> None:
        """Enclose nothing."""

    def begin(self) -> None:
        """Begin a step."""


@dataclass(frozen=True)
class Span:
    """Hold one span: its stage, the places of its two clocks, and the clocks behind the first.

    A kernel with a clock of its own has -1 of them: neither a clock nor the gap before it.
    """

    stage: str
    first: int
    last: int
    clocks: int


@dataclass(frozen=True)
class StageSums:
    """Hold one step's stages, ms summed over their spans, and the mean of the empty spans.

    `net_ms` are without the clocks in them and the gaps before them, `raw_ms` as measured.
    """

    net_ms: Mapping[str, float]
    raw_ms: Mapping[str, float]
    empty_ms: float


@dataclass
class _Open:
    stream: int
    clocks: int = 0


class ClockMarks(Marks):
    """Put the GPU's clock before and after every span, too.

    The first clocks of the device are those of spans; behind them lie pairs, start and end, of
    kernels with clocks of their own.
    """

    def __init__(self, torch: Any, layers: int) -> None:
        """Make room on the device for the clocks of a step."""
        self._spans_end = SPAN_CLOCKS * layers + STEP_CLOCKS
        self._times, self._fresh = torch.zeros(
            2, self._spans_end + INSIDE_CLOCKS * layers, dtype=torch.int64, device="cuda"
        )
        self._fresh[self._spans_end :: 2] = NEVER
        self._used, self._inside_used = 0, self._spans_end
        self._open: list[_Open] = []
        self._spans: list[Span] = []

    def begin(self) -> None:
        """Forget the clocks of the step before."""
        self._times.copy_(self._fresh)

    @contextmanager
    def inside(self, stage: str, layer: int, *, behind: bool = False) -> Iterator[Any]:
        """Enclose the launch of one kernel and give it the place of its own clock."""
        first = self._inside_used
        if first + 2 > len(self._times):
            raise RunFailed("a step with so many kernels that have clocks cannot be timed")
        self._inside_used += 2
        with named(f"{stage} {layer}"):
            if behind:
                self._clock()
            yield pointer(self._times[first:])
        self._spans.append(Span(stage, first, first + 1, -1))

    @contextmanager
    def span(self, stage: str, layer: int) -> Iterator[None]:
        """Enclose the launches of one stage and layer between two clocks."""
        with named(f"{stage} {layer}"):
            first, stream = self._clock()
            self._open.append(_Open(stream))
            yield
            last, _ = self._clock()
            self._spans.append(Span(stage, first, last, self._open.pop().clocks))

    def rest(self, layer: int) -> None:
        """Enclose nothing, to learn what a clock takes."""
        with self.span(EMPTY, layer):
            pass

    def spans_ms(self, stage: str) -> list[float]:
        """Return the time of every span of a stage, in order, after the work is done."""
        ticks = self._times.cpu().tolist()
        found = [span for span in self._spans if span.stage == stage]
        return [(ticks[span.last] - ticks[span.first]) / NS_PER_MS for span in found]

    def sums(self) -> StageSums:
        """Return each stage summed over its spans, after the work is done."""
        return stage_sums(self._spans, self._times.cpu().tolist())

    def _clock(self) -> tuple[int, int]:
        """Let the current stream write the clock; return its place and the stream's handle.

        Spans that are open on the same stream contain it.
        """
        import torch

        if self._used == self._spans_end:
            raise RunFailed(f"a step with more than {self._used} clocks cannot be timed")
        place, self._used = self._used, self._used + 1
        stream = int(torch.cuda.current_stream().cuda_stream)
        launch("oasis_clock", pointer(self._times), wide(place))
        for outer in self._open:
            outer.clocks += outer.stream == stream
        return place, stream


def stage_sums(spans: Sequence[Span], ticks: Sequence[int]) -> StageSums:
    """Sum spans by stage; `ticks` are the clocks in ns. No stage takes less than nothing."""
    lengths = [(ticks[span.last] - ticks[span.first]) / NS_PER_MS for span in spans]
    empty = [ms for span, ms in zip(spans, lengths, strict=True) if span.stage == EMPTY]
    each = fmean(empty) if empty else 0.0
    raw: dict[str, float] = {}
    net: dict[str, float] = {}
    for span, ms in zip(spans, lengths, strict=True):
        if span.stage != EMPTY:
            raw[span.stage] = raw.get(span.stage, 0.0) + ms
            net[span.stage] = net.get(span.stage, 0.0) + ms - (span.clocks + 1) * each
    return StageSums({stage: max(0.0, ms) for stage, ms in net.items()}, raw, each)


class CopyMarks:
    """Time copies that the host submits, by events that it records around those of a layer."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, Any, Any]] = []

    def reserve(self, stage: str) -> tuple[int, int]:
        """Return the handles of two events that someone else records around a span."""
        import torch

        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (first, last):
            event.record()  # an event has no handle before
        self._spans.append((stage, first, last))
        return first.cuda_event, last.cuda_event

    def totals_ms(self) -> dict[str, float]:
        """Return the time of each stage summed over its spans, after the work is done."""
        totals: dict[str, float] = {}
        for stage, first, last in self._spans:
            totals[stage] = totals.get(stage, 0.0) + first.elapsed_time(last)
        return totals
