"""Whether requests arrive faster than they are served, while they arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oasis_sim.engine.result import STATUS, RunResult
from oasis_sim.units import PS_PER_S

LEAST_SHARE = 0.05
LEAST_WAITING = 4
GROWTH = 1.5
"""A queue that is this much longer at the last arrival than half-way there still grows."""


@dataclass(frozen=True)
class Offered:
    """Hold the requests per second that arrive, and that start to be answered meanwhile.

    `waiting` requests have arrived and have no token yet at the end of the arrivals (or of the
    run, when it stops earlier), `waiting_half_way` at half of that time.
    """

    arrive_per_s: float
    answered_per_s: float
    waiting: int
    waiting_half_way: int
    requests: int

    @property
    def overloaded(self) -> bool:
        """Say whether the queue is long and still grows when the arrivals end."""
        least = max(LEAST_WAITING, LEAST_SHARE * self.requests)
        return self.waiting >= least and self.waiting >= GROWTH * self.waiting_half_way

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the warning of an overload, if it is one."""
        if not self.overloaded:
            return ()
        return (
            f"overload: {self.arrive_per_s:,.3g} requests/s arrive and {self.answered_per_s:,.3g} "
            f"are answered meanwhile; {self.waiting:,} wait when the arrivals end and the queue "
            "still grows: TTFT depends on how long the load lasts",
        )


def offered(result: RunResult) -> Offered | None:
    """Return the load of a run whose requests arrive over time, None where all are there."""
    if result.scenario.workload.span_s <= 0 or result.totals.count == 0:
        return None
    kept = result.requests.status != STATUS.index("rejected")
    due = result.scenario.workload.arrival_ps[kept]
    first = result.requests.first_token_ps[kept]
    if not kept.any():
        return None
    end = min(int(due[-1]), result.totals.end_ps)
    middle = (int(due[0]) + end) // 2
    span_s = (end - int(due[0])) / PS_PER_S
    if span_s <= 0:
        return None

    def waiting(now_ps: int) -> int:
        arrived = due <= now_ps
        return int(np.count_nonzero(arrived & ~((first >= 0) & (first <= now_ps))))

    arrived = int(np.count_nonzero(due <= end))
    answered = int(np.count_nonzero((first >= 0) & (first <= end)))
    return Offered(
        # N arrivals have N - 1 gaps between them; the first is at the start of the span.
        arrive_per_s=max(arrived - 1, 0) / span_s,
        answered_per_s=answered / span_s,
        waiting=waiting(end),
        waiting_half_way=waiting(middle),
        requests=arrived,
    )
