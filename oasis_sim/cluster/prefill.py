"""A prefill node: a queue of prompts, one after the other, and the KV that it keeps for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from oasis_sim.cluster.visit import Stage, Visit
from oasis_sim.engine.memory import Pool


class PrefillNode:
    """Compute prompts first-come first-served; a prompt begins when the host can keep its KV.

    `begun` and `computed` are called at the begin and the end of each prefill. `load_ps` is what
    stands in the queue.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        remote_bytes: int,
        begun: Callable[[Visit], None],
        computed: Callable[[Visit], None],
    ) -> None:
        self.number = number
        self.alive = True
        self.load_ps = 0
        self.queue: deque[Visit] = deque()
        self.staging = Pool(f"host memory of prefill node {number} for others", remote_bytes)
        self._env, self._begun, self._computed = env, begun, computed
        self._wake: simpy.Event | None = None
        self._present: Visit | None = None
        self._process: simpy.Process = env.process(self._run())

    def enter(self, visit: Visit) -> None:
        """Queue a prompt."""
        visit.stage, visit.prefill = Stage.QUEUED, self.number
        self.load_ps += visit.prefill_ps
        self.queue.append(visit)
        self.look()

    def look(self) -> None:
        """Look at the queue again: something has come, or memory is free."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def die(self) -> list[Visit]:
        """Stop; return the prompts that were in the queue or being computed, oldest first."""
        self.alive, self.load_ps = False, 0
        lost = [*([self._present] if self._present else []), *self.queue]
        self.queue.clear()
        self._present, self._wake = None, None
        self._process.interrupt()
        return lost

    def revive(self) -> None:
        """Come back, empty."""
        self.alive = True
        self._process = self._env.process(self._run())

    def _run(self) -> Generator[simpy.Event, Any, None]:
        try:
            while True:
                fits = self.queue and self.queue[0].staged_bytes <= self.staging.free_bytes
                if not fits:
                    self._wake = self._env.event()
                    yield self._wake
                    continue
                visit = self._present = self.queue.popleft()
                visit.stage = Stage.PREFILL
                self._begun(visit)
                yield self._env.timeout(visit.prefill_ps)
                self.load_ps -= visit.prefill_ps
                self._present = None
                self._computed(visit)
        except simpy.Interrupt:
            return
