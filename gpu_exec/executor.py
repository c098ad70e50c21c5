"""What an executor is: something that runs the steps of a schedule and says what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class DeviceInfo:
    """Describe what executed: `kind` is cpu or cuda; `title` names it; times need `timing`.

    `timing` is "gpu" where times may be compared with the simulation, else "cpu reference".
    """

    kind: str
    title: str
    driver: str
    devices: int
    timing: str


@dataclass(frozen=True)
class PoolInfo:
    """State the pools an executor made and how they differ from the modelled ones."""

    unit_bytes: int
    executed_unit_bytes: int
    device_slots: int
    modelled_host_units: int
    host_units: int

    @property
    def aliased(self) -> bool:
        """Say whether several modelled host units share one."""
        return self.host_units < self.modelled_host_units

    @property
    def scaled(self) -> bool:
        """Say whether a unit is executed with fewer bytes than modelled."""
        return self.executed_unit_bytes < self.unit_bytes


@dataclass(frozen=True)
class StageTimes:
    """Hold what steps with clocks in them took, ms per step.

    `stage_ms` are the stages, `raw_ms` the same with the clocks in them; `step_ms` such a step.
    """

    stage_ms: Mapping[str, float] = field(default_factory=dict)
    raw_ms: Mapping[str, float] = field(default_factory=dict)
    step_ms: float = 0.0


@dataclass(frozen=True)
class StepRun:
    """Report one executed step.

    `units_moved` and `bytes_moved` are counted by the executor, not copied from the schedule.
    `stages` has the stages that it timed ("a+b": two stages that one kernel does together).
    `repeats_ms` are the times that `step_ms` is the median of. `wrong_units` of the units moved do
    not hold their stamp; `first_wrong` describes the first. Of `sums_checked` elements that
    all-reduces summed over devices, `wrong_sums` are wrong, or were not summed.
    """

    units_moved: int
    bytes_moved: int
    step_ms: float
    stages: StageTimes = field(default_factory=StageTimes)
    wrong_units: int = 0
    first_wrong: str | None = None
    repeats_ms: tuple[float, ...] = ()
    sums_checked: int = 0
    wrong_sums: int = 0


class Executor(Protocol):
    """Run a schedule's steps in order, then check the whole pool once.

    `all_reduces` says how many of them a step holds: none on a single device.
    """

    all_reduces: int
    info: DeviceInfo
    pools: tuple[PoolInfo, ...]
    notes: tuple[str, ...]

    def run_step(self, index: int) -> StepRun:
        """Execute step `index` of the window; call with 0, 1, 2, ... in order."""

    def check_pool(self) -> tuple[int, str | None]:
        """Return how many device slots hold anything but what the moves so far put there."""

    def close(self) -> None:
        """Release the pools."""
