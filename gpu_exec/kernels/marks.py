"""Time spans inside a captured step with events that the graph records, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Marks:
    """Ignore every span: the form for timing whole steps."""

    @contextmanager
    def span(self, _stage: str, _layer: int) -> Iterator[None]:
        """Enclose the launches of one stage and layer."""
        yield


class EventMarks(Marks):
    """Record an event before and after every span, and name the span for profilers (NVTX)."""

    def __init__(self, external: bool) -> None:
        self._external = external
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def span(self, stage: str, layer: int) -> Iterator[None]:
        """Enclose the launches of one stage and layer between two timing events."""
        import torch

        torch.cuda.nvtx.range_push(f"{stage} {layer}")
        first, last = self._event(torch), self._event(torch)
        first.record()
        yield
        last.record()
        torch.cuda.nvtx.range_pop()
        self._spans.append((stage, first, last))

    def reserve(self, stage: str) -> tuple[int, int]:
        """Return the handles of two events that someone else records around a span."""
        import torch

        first, last = self._event(torch), self._event(torch)
        for event in (first, last):
            event.record()  # an event has no handle before
        self._spans.append((stage, first, last))
        return first.cuda_event, last.cuda_event

    def _event(self, torch: Any) -> Any:
        if self._external:
            return torch.cuda.Event(enable_timing=True, external=True)
        return torch.cuda.Event(enable_timing=True)

    def spans_ms(self, stage: str) -> list[float]:
        """Return the time of every span of a stage, in order, after the work is done."""
        return [first.elapsed_time(last) for name, first, last in self._spans if name == stage]

    def totals_ms(self) -> dict[str, float]:
        """Return the time of each stage summed over its spans, after the work is done."""
        totals: dict[str, float] = {}
        for stage, first, last in self._spans:
            totals[stage] = totals.get(stage, 0.0) + first.elapsed_time(last)
        return totals
