"""What a reproduction is run with, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape
from oasis_sim.trace import AttentionTrace

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Setup:
    """Name the hardware, its engine, and the traces that schemes with offload follow."""

    profile: HardwareProfile
    engine: str
    traces: tuple[AttentionTrace, ...]

    def origin_notes(self, *models: ModelShape) -> tuple[str, ...]:
        """Say which traces are synthetic, and which models move blocks as another one does."""
        found = []
        for trace in self.traces:
            if trace.is_synthetic:
                found.append(f"trace {trace.name} is synthetic: block moves are modelled")
            traced = str(trace.meta["model"]["name"])
            found += [
                f"{model.name} moves blocks as trace {trace.name} of {traced} says"
                for model in models
                if model.name.lower() != traced.lower()
            ]
        return tuple(found)


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""
