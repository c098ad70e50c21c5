"""Requests over time: when they arrive, how long their prompts and answers are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from oasis_sim.errors import InputError
from oasis_sim.units import PS_PER_S

LARGEST_TOKENS = 2**31 - 1
LARGEST_REQUESTS = 10_000_000
LARGEST_ARRIVAL_PS = 2**62
"""About 53 days: later arrivals would leave no room on the 64-bit clock for the run itself."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Workload:
    """Hold N requests in order of arrival; `arrival_ps`, `prompt_tokens`, `output_tokens`: [N].

    `format` names where they come from (a file format, ``closed_loop`` or ``poisson``),
    `time_unit` the unit of the file's timestamps, `warnings` what was dropped or assumed.
    """

    name: str
    format: str
    arrival_ps: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    time_unit: str = "s"
    warnings: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Freeze the arrays; raise InputError when they cannot be a workload."""
        for name in ("arrival_ps", "prompt_tokens", "output_tokens"):
            array = np.array(getattr(self, name), dtype=np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        self.check()

    def check(self) -> None:
        """Raise InputError unless there are requests, in order, each with tokens both ways."""
        count = self.arrival_ps.size
        if not count:
            raise InputError("holds no requests", file=self.name, fix="nothing to simulate")
        if self.prompt_tokens.shape != (count,) or self.output_tokens.shape != (count,):
            raise InputError("the three columns differ in length", file=self.name)
        if self.arrival_ps[0] < 0 or np.any(np.diff(self.arrival_ps) < 0):
            raise InputError("arrivals are negative or out of order", file=self.name)
        if self.arrival_ps[-1] > LARGEST_ARRIVAL_PS:
            raise InputError("the arrivals span more than 53 days", file=self.name)
        for name in ("prompt_tokens", "output_tokens"):
            tokens = getattr(self, name)
            if tokens.min() < 1 or tokens.max() > LARGEST_TOKENS:
                raise InputError(
                    "out of range", file=self.name, field=name, fix=f"use 1 to {LARGEST_TOKENS}"
                )

    @property
    def requests(self) -> int:
        """Return the number of requests (N)."""
        return int(self.arrival_ps.size)

    @property
    def span_s(self) -> float:
        """Return the seconds from the first to the last arrival."""
        return float(self.arrival_ps[-1] - self.arrival_ps[0]) / PS_PER_S

    @property
    def mean_rate_per_s(self) -> float:
        """Return arrivals per second: N - 1 gaps over the span (0 when all arrive at once)."""
        return (self.requests - 1) / self.span_s if self.span_s else 0.0

    @property
    def summary(self) -> str:
        """Say in one line what was read, with the resolved unit, span and mean rate."""
        return (
            f"{self.name} ({self.format}, time in {self.time_unit}): {self.requests:,} requests "
            f"over {self.span_s:,.3f} s, {self.mean_rate_per_s:,.3f} requests/s on average"
        )
