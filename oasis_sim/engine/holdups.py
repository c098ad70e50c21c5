"""What kept the batch from growing, and for how long."""

from __future__ import annotations

HOLDUPS = ("hbm", "host", "concurrency", "prefill_nodes", "prefill", "arrivals", "requests")
"""Kinds: memory that refused the head of the queue, clients at their limit, requests that wait for
a prefill node, or for a place in prefill on the GPUs that decode, no request there although some
will come, none left to come."""


class Holdups:
    """Add up the simulated time that each kind lasted; one of them is in force at any time."""

    def __init__(self) -> None:
        """Start at time 0 with nothing held up."""
        self.time_ps = dict.fromkeys(HOLDUPS, 0)
        self._kind: str | None = None
        self._since_ps = 0

    def change(self, now_ps: int, kind: str | None) -> None:
        """End what was in force until now and begin another kind (None: nothing any more)."""
        if self._kind is not None:
            self.time_ps[self._kind] += now_ps - self._since_ps
        self._kind, self._since_ps = kind, now_ps
