"""What keeps more requests from decoding, observed over a disaggregated run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oasis_sim.engine.holdups import Holdups

if TYPE_CHECKING:
    from oasis_sim.cluster.serving import ClusterLoop


class Watch:
    """Look after each change of queues: memory of a decode node first, then prefill, then load."""

    def __init__(self, loop: ClusterLoop) -> None:
        self.holdups = Holdups()
        self._loop = loop

    def look(self) -> None:
        """Note what is in force from now on."""
        loop = self._loop
        lacking = next((node.lacking for node in loop.decode if node.lacking), None)
        self.holdups.change(loop.now_ps, lacking or self._why_no_more())

    def _why_no_more(self) -> str:
        loop = self._loop
        if loop.homeless or any(node.queue for node in loop.prefill):
            return "prefill_nodes"
        due = loop.book.next_due_ps
        if due is None:
            return "requests"
        return "concurrency" if loop.book.concurrency and due <= loop.now_ps else "arrivals"
