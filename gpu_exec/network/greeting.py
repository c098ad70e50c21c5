"""What the serving side says of itself first, and whether the reading side can work with it."""

from __future__ import annotations

import base64
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_exec.network.channel import Channel
from gpu_exec.network.points import POOL_BYTES
from oasis_sim.errors import RunFailed
from oasis_sim.text import plain

FORMAT, VERSION = "oasis-network", 2
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOST_SHOWN = 40
COUNTS = (("address", 0, 2**64 - 1), ("device", 0, 255), ("remote_bytes", 1, 10**18))
"""Numbers of a greeting with their least and greatest value."""


@dataclass(frozen=True)
class Greeting:
    """Hold the serving side: its pool, what NIXL needs to reach it, its memory and its machine.

    `machine` is the same for all processes and network addresses of one running kernel.
    """

    memory: str
    metadata: bytes
    address: int
    device: int
    remote_bytes: int
    nixl: str
    machine: str

    def message(self) -> dict[str, Any]:
        """Return what is sent."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "memory": self.memory,
            "metadata": base64.b64encode(self.metadata).decode(),
            "address": self.address,
            "device": self.device,
            "pool_bytes": POOL_BYTES,
            "remote_bytes": self.remote_bytes,
            "nixl": self.nixl,
            "machine": self.machine,
        }


def read_greeting(channel: Channel, memory: str, nixl: str) -> Greeting:
    """Receive a greeting; raise RunFailed for another program, version, memory or NIXL."""
    hello = channel.receive()
    if hello.get("format") != FORMAT:
        raise RunFailed("the other side is no serving side of this program")
    if hello.get("version") != VERSION:
        raise RunFailed(
            f"the other side speaks version {plain(str(hello.get('version')))[:MOST_SHOWN]} of the "
            f"measurement, this one {VERSION}; install the same oasis-sim on both hosts"
        )
    if hello.get("memory") != memory or hello.get("pool_bytes") != POOL_BYTES:
        raise RunFailed("the other side serves other memory; give both the same --memory")
    theirs = channel.field(hello, "nixl", str)
    if theirs.rpartition(" ")[2] != nixl.rpartition(" ")[2]:
        raise RunFailed(
            f"NIXL differs: {nixl} here, {plain(theirs)[:MOST_SHOWN]} there; install the same "
            "version on both hosts"
        )
    try:
        metadata = base64.b64decode(channel.field(hello, "metadata", str), validate=True)
    except ValueError:
        raise RunFailed("the other side sent broken metadata") from None
    address, device, size = (_count(channel, hello, *each) for each in COUNTS)
    return Greeting(
        memory, metadata, address, device, size, theirs, channel.field(hello, "machine", str)
    )


def _count(channel: Channel, hello: dict[str, Any], key: str, low: int, high: int) -> int:
    found: int = channel.field(hello, key, int)
    if not low <= found <= high:
        raise RunFailed(f"the other side sent a broken {key}")
    return found


def machine() -> str:
    """Return a fingerprint of this machine as it runs now."""
    try:
        name = BOOT_ID.read_text(encoding="ascii")
    except OSError:
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:16]
