"""Pools and their stamps: every wrong byte is found, GPUs stay awake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gpu_exec.network.measure import measure
from gpu_exec.network.points import Point
from gpu_exec.network.pool import HostPool, open_pool
from gpu_exec.network.serve import kept_awake
from gpu_exec.network.stamps import POISON, Units, pool_words, units_of, wrong_bytes
from oasis_sim.errors import GpuUnavailable, RunFailed, UsageError
from oasis_sim.units import MIB
from tests.gpu_exec.fake_transport import QUICK, SMALL, FakeTransport, a_network

# Verification -----------------------------------------------------------------------------------


def lose_a_unit(transport: FakeTransport, into: Units, source: Units) -> None:
    """Leave the last unit as it was."""
    units_of(transport.words, transport.unit_bytes)[into[-1]] = POISON


def swap_units(transport: FakeTransport, into: Units, source: Units) -> None:
    """Deliver another unit in place of the first."""
    units = units_of(transport.words, transport.unit_bytes)
    units[into[0]] = units_of(transport.remote, transport.unit_bytes)[source[0] ^ 1]


def deliver_the_last_generation(transport: FakeTransport, into: Units, source: Units) -> None:
    """Deliver what the peer held before it was stamped anew."""
    old = pool_words(transport.pool_bytes, 0)
    units = units_of(transport.words, transport.unit_bytes)
    units[into] = units_of(old, transport.unit_bytes)[source]


def write_elsewhere(transport: FakeTransport, into: Units, source: Units) -> None:
    """Damage one byte next to a unit."""
    transport.words.view(np.uint8)[(int(into[0]) + 1) * transport.unit_bytes] ^= 1


def flip_a_late_byte(transport: FakeTransport, into: Units, source: Units) -> None:
    """Damage the last byte of a unit, in a later transfer only."""
    if transport.transfers == 3:
        units = units_of(transport.words, transport.unit_bytes)
        units.view(np.uint8)[into[0], -1] ^= 0x80


@pytest.mark.parametrize(
    "fault",
    [lose_a_unit, swap_units, deliver_the_last_generation, write_elsewhere, flip_a_late_byte],
)
def test_every_wrong_byte_is_found(
    fault: Callable[[FakeTransport, Units, Units], None],
) -> None:
    """Lost, swapped, stale and misplaced bytes end the measurement."""
    with pytest.raises(RunFailed, match=r"bytes arrived wrong in transfer [13]"):
        measure(FakeTransport(a_network(), fault=fault), SMALL[:4], QUICK)


def test_wrong_bytes_counts_bytes() -> None:
    """One flipped bit is one byte."""
    local, remote = pool_words(4096, 0), pool_words(4096, 0)
    everything = np.arange(512, dtype=np.int32)
    assert 0 == wrong_bytes(local, remote, (8, everything, everything))
    local.view(np.uint8)[77] ^= 1
    assert 1 == wrong_bytes(local, remote, (8, everything, everything))


def test_a_point_larger_than_the_pool_is_refused() -> None:
    """The units would overlap."""
    transport = FakeTransport(a_network(), pool_bytes=MIB)
    with pytest.raises(UsageError, match="does not fit"):
        measure(transport, [Point(MIB, 1, False)], QUICK)


def test_host_pools_poison_units() -> None:
    """Only the named units are overwritten."""
    pool = HostPool(4096)
    pool.fill(pool_words(4096, 1))
    pool.poison(1024, np.array([2], dtype=np.int32))
    words = units_of(pool.words(), 1024)
    assert (words[2] == POISON).all()
    assert (words[[0, 1, 3]] == units_of(pool_words(4096, 1), 1024)[[0, 1, 3]]).all()


def test_gpu_memory_needs_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5, with what is there."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GpuUnavailable, match="GPU 1 is asked for and 0 are here"):
        open_pool("gpu", 4096, 1)


def test_gpu_pools_poison_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool of a GPU behaves like that of the host (its tensor stands in host memory here)."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, device: empty(n, dtype=dtype))
    gpu, host = open_pool("gpu", 4096, 0), HostPool(4096)
    assert (gpu.words() == host.words()).all()
    for pool in (gpu, host):
        pool.fill(pool_words(4096, 3))
        pool.poison(24, np.array([5, 0, 100], dtype=np.int32))
    assert (gpu.words() == host.words()).all()
    gpu.poison(24, None)
    assert (gpu.words() == POISON).all()


def test_a_gpu_is_kept_awake_and_nothing_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One spin at a time on a stream of its own; the next one only when that has ended."""
    torch = pytest.importorskip("torch", reason="GPU memory needs PyTorch")
    busy, spins = [False], []
    stream = SimpleNamespace(query=lambda: not busy[0])
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "synchronize": lambda device: None,
        "device": lambda index: nullcontext(),
        "stream": lambda given: nullcontext(),
        "Stream": lambda: stream,
        "_sleep": spins.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda n, dtype, device: empty(n, dtype=dtype))
    pool = open_pool("gpu", 4096, 0)
    for busy[0] in (False, True, True, False):
        pool.awake()
    assert 2 == len(spins)


@pytest.mark.parametrize(("memory", "woken"), [("gpu", True), ("host", False)])
def test_the_serving_gpu_stays_awake(memory: str, woken: bool) -> None:
    """A thread wakes it until the peer has left; host memory needs none."""
    calls: list[float] = []
    enough = threading.Event()

    class Pool(HostPool):
        def awake(self) -> None:
            calls.append(time.monotonic())
            if len(calls) >= 3:
                enough.set()

    threads = threading.active_count()
    with kept_awake(Pool(4096), memory):
        assert woken == enough.wait(5.0 if woken else 0.05)
    assert threads == threading.active_count()
    assert woken == bool(calls)
