"""What a reproduction is run with: hardware, engine and traces."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.engine.spec import DEFAULT_ENGINE, DEFAULT_PROFILE, DEFAULT_TRACE
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.trace import AttentionTrace


@dataclass(frozen=True, eq=False)
class Setup:
    """Name the hardware, its engine, and the traces that schemes with offload follow."""

    profile: HardwareProfile
    engine: str
    traces: tuple[AttentionTrace, ...]

    @property
    def origin_notes(self) -> tuple[str, ...]:
        """Say which traces are synthetic."""
        return tuple(
            f"trace {trace.name} is synthetic, shaped to published statistics"
            for trace in self.traces
            if trace.is_synthetic
        )
