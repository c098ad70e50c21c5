"""Clocks inside a step: what lies between them, and what they take themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exec.kernels import marks
from gpu_exec.kernels.marks import EMPTY, ClockMarks, Marks, Span, stage_sums
from oasis_sim.errors import RunFailed


class Ticks:
    """Stand in for the clocks on the device, or those from a place on."""

    def __init__(self, ticks: list[int], place: int = 0) -> None:
        """Look at clocks."""
        self.ticks, self.place = ticks, place

    def __len__(self) -> int:
        """Count the clocks."""
        return len(self.ticks)

    def __getitem__(self, part: slice) -> Ticks:
        """Look at the clocks from a place on."""
        return Ticks(self.ticks, part.start)

    def __setitem__(self, part: slice, tick: int) -> None:
        """Set some clocks."""
        self.ticks[part] = [tick] * len(self.ticks[part])

    def copy_(self, other: Ticks) -> None:
        """Take the clocks of another."""
        self.ticks[:] = other.ticks

    def cpu(self) -> Ticks:
        """Return itself."""
        return self

    def tolist(self) -> list[int]:
        """Return the clocks."""
        return list(self.ticks)


class FakeGpu:
    """Run what is launched at once, on streams with a time of their own each."""

    gap_ns = 1_200

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of torch and of the kernels."""
        self.stream, self.now = 1, {1: 0, 2: 500}
        self.names: list[str] = []
        nvtx = SimpleNamespace(range_push=self.names.append, range_pop=lambda: None)
        current = SimpleNamespace(
            nvtx=nvtx, current_stream=lambda: SimpleNamespace(cuda_stream=self.stream)
        )
        self.torch = SimpleNamespace(cuda=current, int64=int, zeros=self.zeros)
        monkeypatch.setitem(sys.modules, "torch", self.torch)
        monkeypatch.setattr(marks, "pointer", lambda times: times)
        monkeypatch.setattr(marks, "launch", self.launch)

    def launch(self, name: str, times: Ticks, place: Any) -> None:
        """Write the clock of the current stream when the kernel ends."""
        assert "oasis_clock" == name
        self.work(0)
        times.ticks[place.value] = self.now[self.stream]

    def zeros(self, rows: int, columns: int, dtype: type[int], device: str) -> list[Ticks]:
        """Make room for clocks."""
        assert (int, "cuda") == (dtype, device)
        return [Ticks([0] * columns) for _ in range(rows)]

    def blocks(self, clock: Ticks, *times: tuple[int, int]) -> None:
        """Run the blocks of a kernel with a clock of its own, each from a time to another."""
        for start, end in times:
            clock.ticks[clock.place] = min(clock.ticks[clock.place], start)
            clock.ticks[clock.place + 1] = max(clock.ticks[clock.place + 1], end)

    def work(self, ns: int) -> None:
        """Let the current stream run a kernel."""
        self.now[self.stream] += self.gap_ns + ns

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Launch on another stream."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before


def test_what_the_clocks_take_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are their kernels and the gaps between, whatever lies in them on which stream."""
    gpu = FakeGpu(monkeypatch)
    clocks = ClockMarks(gpu.torch, layers=2)
    clocks.begin()
    for layer in range(2):
        with clocks.span("qkv", layer):
            gpu.work(15_000)
            gpu.work(5_000)
            with gpu.on(2), clocks.span("transfer", layer):
                gpu.work(90_000)
        with clocks.span("output_ffn", layer):
            gpu.work(50_000)
            for _ in range(2):
                with clocks.span("all_reduce", layer):
                    gpu.work(7_000)
        clocks.rest(layer)
    found = clocks.sums()
    assert pytest.approx(0.0012) == found.empty_ms
    expected = {"qkv": 0.0424, "output_ffn": 0.1328, "all_reduce": 0.028, "transfer": 0.180}
    assert expected == {name: pytest.approx(ms) for name, ms in found.net_ms.items()}
    raw = {"qkv": 0.0472, "output_ffn": 0.1472, "all_reduce": 0.0376, "transfer": 0.1848}
    assert raw == {name: pytest.approx(ms) for name, ms in found.raw_ms.items()}
    assert [pytest.approx(0.0094)] * 4 == clocks.spans_ms("all_reduce")
    assert "output_ffn 1" in gpu.names


def test_kernels_with_clocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take from their first block's start to their last one's end, in every step anew."""
    gpu = FakeGpu(monkeypatch)
    clocks = ClockMarks(gpu.torch, layers=2)
    places = []
    for layer in range(2):
        with clocks.span("attention", layer), clocks.inside("selection", layer) as place:
            gpu.work(50_000)
            places.append(place)
        clocks.rest(layer)
    for later in (1_000_000, 5_000_000):
        clocks.begin()
        for place in places:
            gpu.blocks(place, (later + 700, later + 9_000), (later + 100, later + 2_000))
        assert pytest.approx(2 * 0.0089) == clocks.sums().net_ms["selection"]


def test_spans_are_named_for_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With clocks and without, the launches of a stage stand in a range of its name and layer."""
    gpu = FakeGpu(monkeypatch)
    for marks_of_a_step in (Marks(), ClockMarks(gpu.torch, layers=1)):
        gpu.names.clear()
        with marks_of_a_step.span("attention", 3), marks_of_a_step.inside("selection", 3) as place:
            assert (place is None) == (type(marks_of_a_step) is Marks)
        assert ["attention 3", "selection 3"] == gpu.names


def test_more_clocks_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with more spans than the device has room for is refused, not cut short."""
    clocks = ClockMarks(FakeGpu(monkeypatch).torch, layers=1)
    for _ in range(2):
        with clocks.inside("selection", 0, behind=True):
            pass
    with pytest.raises(RunFailed, match="have clocks"), clocks.inside("selection", 1):
        pass
    for _ in range(18):
        clocks.rest(0)
    with pytest.raises(RunFailed, match="more than 38 clocks"):
        clocks.rest(1)


@given(
    work=st.lists(st.integers(0, 10**6), min_size=1, max_size=40),
    empty=st.lists(st.integers(0, 3_000), min_size=1, max_size=40),
)
def test_sums(work: list[int], empty: list[int]) -> None:
    """A stage's spans less two mean empty spans each, never below nothing."""
    spans = [Span("qkv", 2 * i, 2 * i + 1, 1) for i in range(len(work))]
    base = 2 * len(work)
    spans += [Span(EMPTY, base + 2 * i, base + 2 * i + 1, 1) for i in range(len(empty))]
    ticks = [tick for length in (*work, *empty) for tick in (7, 7 + length)]
    found = stage_sums(spans, ticks)
    each = sum(empty) / len(empty)
    assert pytest.approx(max(0.0, sum(work) - 2 * each * len(work)) / 1e6) == found.net_ms["qkv"]
    assert pytest.approx(sum(work) / 1e6) == found.raw_ms["qkv"]
    assert EMPTY not in found.net_ms
