"""Transfers through NIXL: from a second process of this machine, or from another host."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_exec.network.channel import connect, place_of
from gpu_exec.network.greeting import Greeting, machine, read_greeting
from gpu_exec.network.nixl_side import NixlSide, load_nixl, nixl_version, ucx_settings
from gpu_exec.network.points import POOL_BYTES
from gpu_exec.network.pool import Pool, open_pool
from gpu_exec.network.serve import ANNOUNCED
from gpu_exec.network.stamps import Units, Words
from gpu_exec.network.transport import TransportInfo
from oasis_sim.errors import RunFailed

LOOPBACK = "127.0.0.1"
LEAVE_SECONDS = 10.0


class NixlTransport:
    """Read units of a serving side's pool; see `Transport`."""

    def __init__(self, memory: str, peer: str | None = None) -> None:
        """Join the side that serves at `peer` (HOST:PORT), or start one in a second process."""
        load_nixl()
        self._child: subprocess.Popen[str] | None = None
        self._pool: Pool = open_pool(memory, POOL_BYTES, 0)
        place = place_of(peer) if peer else (LOOPBACK, self._start(memory))
        try:
            self._channel = connect(place)
            met = self._join(memory)
        except BaseException:
            self._stop()
            raise
        kind = "host memory" if memory == "host" else "memory of two GPUs"
        self.info = TransportInfo(
            nixl_version(), kind, _between(met, peer), ucx_settings(), met.remote_bytes
        )
        self.pool_bytes = POOL_BYTES

    def renew(self, generation: int) -> None:
        """Let the peer stamp its pool anew."""
        self._channel.send({"renew": generation})
        if self._channel.field(self._channel.receive(), "done", int) != generation:
            raise RunFailed("the other side answered another question; start both again")

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units of the own pool, or all of it."""
        self._pool.poison(unit_bytes, into)

    def read(self, unit_bytes: int, into: Units, source: Units) -> float:
        """Read units; return the seconds from posting to completion."""
        self._pool.awake()
        return self._side.read(unit_bytes, into, source)

    def local(self) -> Words:
        """Return the own pool's contents."""
        return self._pool.words()

    def close(self) -> None:
        """Leave the peer; a second process ends with that."""
        try:
            self._side.close()
            self._channel.send({"end": True})
        finally:
            self._stop()

    def _start(self, memory: str) -> int:
        """Start the serving side as a second process; return its port."""
        arguments = ["calibrate", "--network", "--serve", f"{LOOPBACK}:0", "--memory", memory]
        # On one machine the two sides use two GPUs.
        arguments += ["--device", "1"] if memory == "gpu" else []
        self._child = subprocess.Popen(
            [sys.executable, "-m", "oasis_sim.cli.main", *arguments, "--quiet"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        for line in self._child.stdout:  # NIXL and UCX may say something first
            told = line.rpartition(":")[2].strip()
            if line.startswith(ANNOUNCED) and told.isdecimal():
                return int(told)
        self._stop()
        raise RunFailed("the second process did not start; its message is above")

    def _join(self, memory: str) -> Greeting:
        """Greet the serving side and get ready to read from it."""
        met = read_greeting(self._channel, memory, nixl_version())
        self._side = NixlSide(f"reading-{os.getpid()}", self._pool, serves=False)
        self._side.join(met.metadata, met.address, met.device)
        return met

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _between(met: Greeting, peer: str | None) -> str:
    if met.machine != machine():
        return "two hosts"
    return "two processes of one host" + (", through its network" if peer else "")
