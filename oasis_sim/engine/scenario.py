"""One simulated experiment: every input, frozen and resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oasis_sim.hardware import HardwareProfile
    from oasis_sim.model import ModelShape
    from oasis_sim.scheme import Scheme
    from oasis_sim.trace import AttentionTrace
    from oasis_sim.workload import Workload


@dataclass(frozen=True, eq=False)
class Scenario:
    """Name what is simulated: hardware, engine, model, scheme, traces and workload.

    `drafter` picks one of the traces' drafters (None: the first recorded one). `concurrency`
    limits the requests that are in the system at once (None: no limit); at that limit, a request
    follows `think_ps` after one has ended. `host_bytes` is the host memory per GPU that KV may take
    (None: the profile's share). `max_steps` ends the run early (None: when every request is done).
    `schedule_steps` is the length of the window of block moves that is kept for replay (0: none).
    """

    profile: HardwareProfile
    engine_name: str
    model: ModelShape
    scheme: Scheme
    traces: tuple[AttentionTrace, ...]
    workload: Workload
    concurrency: int | None = None
    think_ps: int = 0
    drafter: str | None = None
    tp: int = 1
    host_bytes: int | None = None
    seed: int = 0
    max_steps: int | None = None
    schedule_steps: int = 8
