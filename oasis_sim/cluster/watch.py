"""What keeps more requests from decoding, observed over a disaggregated run."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from oasis_sim.cluster.decode import DecodeNode
from oasis_sim.cluster.prefill import PrefillNode
from oasis_sim.cluster.visit import Visit
from oasis_sim.engine.holdups import Holdups
from oasis_sim.engine.requests import RequestBook


class Watch:
    """Look after each change of queues: memory of a decode node first, then prefill, then load."""

    def __init__(
        self,
        env: simpy.Environment,
        prefill: Sequence[PrefillNode],
        decode: Sequence[DecodeNode],
        homeless: Sequence[Visit],
        book: RequestBook,
    ) -> None:
        """Watch nodes, the requests that no prefill node is alive for, and the book."""
        self.holdups = Holdups()
        self._env, self._prefill, self._decode = env, prefill, decode
        self._homeless, self._book = homeless, book

    def look(self) -> None:
        """Note what is in force from now on."""
        lacking = None
        for node in self._decode:
            if node.lacking:
                lacking = node.lacking
                break
        self.holdups.change(int(self._env.now), lacking or self._why_no_more())

    def _why_no_more(self) -> str:
        if self._homeless:
            return "prefill_nodes"
        for node in self._prefill:
            if node.queue:
                return "prefill_nodes"
        due = self._book.next_due_ps
        if due is None:
            return "requests"
        waits = self._book.concurrency and due <= int(self._env.now)
        return "concurrency" if waits else "arrivals"
