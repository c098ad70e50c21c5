"""Who attends the decoded rows of a trajectory: the interface."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from oasis_sim.record.attention import AttentionPass, KeyValueStore


class DecodePass(AttentionPass, Protocol):
    """Append decoded tokens one by one to a store, and let each see all before it, and itself.

    ``queries`` are the last token's by layer, [Hq, 1, d].
    """

    queries: dict[int, Tensor]


class DecodeBackend(Protocol):
    """Attend decoded rows."""

    def prefilled(self, store: KeyValueStore) -> None:
        """Let a prompt's keys and values be as they are attended from now on."""
        ...

    def decoder(self, store: KeyValueStore) -> DecodePass:
        """Return the pass of the next decoded tokens."""
        ...
