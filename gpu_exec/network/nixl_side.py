"""NIXL as this program uses it: an agent with one registered pool, and reads from a peer's."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpu_exec.network.pool import Pool
from gpu_exec.network.stamps import Units
from oasis_sim.errors import OasisError, RunFailed, UsageError

BACKEND = "UCX"
PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12")
INSTALL = "pip install -e '.[network]'"
COMPLETION_SECONDS = 30.0
"""A transfer that takes longer is lost."""


def load_nixl() -> Any:
    """Return NIXL's Python interface; raise UsageError where it is not installed."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    reasons = []
    for name in PACKAGES:
        try:
            return importlib.import_module(f"{name}._api")
        except ImportError as error:
            reasons.append(str(error))
    raise UsageError(
        f"calibrate --network needs NIXL, which is not usable here ({reasons[0]}): {INSTALL}"
    )


def nixl_version() -> str:
    """Name the installed package and its version."""
    for name in ("nixl-cu13", "nixl-cu12", "nixl"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "NIXL of unknown version"


def ucx_settings(environment: Mapping[str, str] | None = None) -> str:
    """Return what the environment tells UCX, which chooses how bytes move."""
    found = os.environ if environment is None else environment
    set_here = [f"{key}={found[key]}" for key in sorted(found) if key.startswith("UCX_")]
    return " ".join(set_here) or "UCX defaults"


class NixlSide:
    """One agent with one pool."""

    def __init__(self, name: str, pool: Pool, *, serves: bool) -> None:
        """Start an agent and register the pool.

        A side that serves has a thread that answers; one that reads polls while it waits, and a
        second thread would only hold it up.
        """
        self._api = load_nixl()
        self._pool = pool
        self._peer = ""
        self._remote = (0, 0)
        self._lists: dict[int, tuple[Any, Any]] = {}
        with failures_told("starting an agent"):
            config = self._api.nixl_agent_config(enable_prog_thread=serves, backends=[BACKEND])
            self._agent = self._api.nixl_agent(name, config)
            if BACKEND not in self._agent.backends:
                raise RunFailed(f"NIXL has no {BACKEND} backend here")
            region = (pool.address, pool.size_bytes, pool.device, "")
            self._registered = self._agent.register_memory([region], pool.segment)

    def metadata(self) -> bytes:
        """Return what a peer needs in order to reach this side."""
        with failures_told("describing the agent"):
            found: bytes = self._agent.get_agent_metadata()
        return found

    def join(self, metadata: bytes, address: int, device: int) -> None:
        """Get ready to read from a peer's pool."""
        with failures_told("joining the peer"):
            name = self._agent.add_remote_agent(metadata)
        self._peer = name.decode() if isinstance(name, bytes) else str(name)
        self._remote = (address, device)

    def read(self, unit_bytes: int, into: Units, source: Units) -> float:
        """Read units of the peer's pool; return the seconds from posting to completion.

        Choosing the descriptors counts, as it is done for every transfer; preparing the lists that
        they are chosen from is done once per unit size and does not.
        """
        with failures_told("a transfer"):
            local, remote = self._prepared(unit_bytes)
            agent = self._agent
            started = time.perf_counter()
            handle = agent.make_prepped_xfer("READ", local, into, remote, source)
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
                if time.perf_counter() - started > COMPLETION_SECONDS:
                    raise RunFailed(f"a transfer was not complete in {COMPLETION_SECONDS:g} s")
            taken = time.perf_counter() - started
            handle.release()
        if state != "DONE":
            raise RunFailed(f"NIXL ended a transfer with {state}")
        return taken

    def close(self) -> None:
        """Let go of lists, peer and memory."""
        with failures_told("closing"):
            for pair in self._lists.values():
                for prepared in pair:
                    prepared.release()
            self._lists.clear()
            if self._peer:
                self._agent.remove_remote_agent(self._peer)
            self._agent.deregister_memory(self._registered)

    def _prepared(self, unit_bytes: int) -> tuple[Any, Any]:
        if unit_bytes not in self._lists:
            pool = self._pool
            count = pool.size_bytes // unit_bytes
            ends = (
                ("NIXL_INIT_AGENT", pool.address, pool.device),
                (self._peer, self._remote[0], self._remote[1]),
            )
            local, remote = (
                self._agent.prep_xfer_dlist(
                    agent, _descriptors(address, unit_bytes, count, device), pool.segment
                )
                for agent, address, device in ends
            )
            self._lists[unit_bytes] = (local, remote)
        return self._lists[unit_bytes]


def _descriptors(address: int, unit_bytes: int, count: int, device: int) -> np.ndarray:
    """Return rows of (address, bytes, device), as NIXL takes them: uint64[count, 3]."""
    rows = np.empty((count, 3), dtype=np.uint64)
    rows[:, 0] = address + unit_bytes * np.arange(count, dtype=np.uint64)
    rows[:, 1], rows[:, 2] = unit_bytes, device
    return rows


@contextmanager
def failures_told(doing: str) -> Iterator[None]:
    """Turn any error of NIXL inside the block into a RunFailed that says what was being done."""
    try:
        yield
    except OasisError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's errors share no base class
        raise RunFailed(f"NIXL failed at {doing}: {error}") from None
