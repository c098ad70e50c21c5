"""The serving side: offer a stamped pool to one peer, and stamp it anew when it asks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_exec.network.channel import Channel, listen
from gpu_exec.network.greeting import Greeting, machine
from gpu_exec.network.nixl_side import NixlSide, nixl_version
from gpu_exec.network.points import POOL_BYTES
from gpu_exec.network.pool import Pool, open_pool
from gpu_exec.network.stamps import pool_words
from oasis_sim.errors import RunFailed

PEER_SECONDS = 600.0
ANNOUNCED = "serving at "
"""How the line begins that names host and port."""
AWAKE_SECONDS = 0.002
"""Shorter than a GPU is kept awake at a time."""


def serve(
    place: tuple[str, int], memory: str, device: int, announce: Callable[[int], None]
) -> None:
    """Serve one peer and return when it has ended; `announce` is told the port.

    Raise RunFailed when no peer comes within ten minutes or the connection breaks.
    """
    pool = open_pool(memory, POOL_BYTES, device)
    with listen(place) as listener:
        side = NixlSide(f"serving-{os.getpid()}", pool, serves=True)
        listener.settimeout(PEER_SECONDS)
        announce(listener.getsockname()[1])
        with _accepted(listener) as channel, kept_awake(pool, memory):
            found = (side.metadata(), pool.address, pool.device, memory_bytes())
            channel.send(Greeting(memory, *found, nixl_version(), machine()).message())
            while "end" not in (message := channel.receive()):
                generation = channel.field(message, "renew", int)
                pool.fill(pool_words(pool.size_bytes, generation))
                channel.send({"done": generation})
        side.close()


@contextmanager
def kept_awake(pool: Pool, memory: str) -> Iterator[None]:
    """Keep the GPU of a pool awake meanwhile; nothing for host memory."""
    if memory == "host":
        yield
        return
    stop = threading.Event()

    def spin() -> None:
        while not stop.wait(AWAKE_SECONDS):
            pool.awake()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _accepted(listener: socket.socket) -> Channel:
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise RunFailed(f"no peer came within {PEER_SECONDS:g} s") from None
    return Channel(connection)
