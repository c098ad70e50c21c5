"""What a transport is: a way to read scattered units of another process's memory into one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_exec.network.stamps import Units, Words


@dataclass(frozen=True)
class TransportInfo:
    """Say what moves the bytes and between which memories; `remote_bytes` is the peer's memory."""

    transport: str
    memory: str
    peer: str
    settings: str
    remote_bytes: int


class Transport(Protocol):
    """Read units out of the peer's pool, which holds `pool_words` of the present generation."""

    @property
    def info(self) -> TransportInfo:
        """Describe the transport."""

    @property
    def pool_bytes(self) -> int:
        """Return the size of either pool."""

    def renew(self, generation: int) -> None:
        """Let the peer stamp its pool anew."""

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units of the own pool (None: all of it), to see what does not arrive."""

    def read(self, unit_bytes: int, into: Units, source: Units) -> float:
        """Read units; return the seconds from posting to completion.

        Raise RunFailed for a transfer that fails or does not complete.
        """

    def local(self) -> Words:
        """Return the own pool as host memory, uint64[pool / 8]."""

    def close(self) -> None:
        """Let go of memory and peer."""
