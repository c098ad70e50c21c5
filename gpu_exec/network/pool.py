"""Memory that transfers read from or write into: host memory, or that of a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gpu_exec.network.stamps import POISON, WORD_BYTES, Units, Words, units_of
from oasis_sim.errors import GpuUnavailable

SPIN_CYCLES = 8_000_000
"""About four milliseconds, longer than all transfers but the slowest."""


class Pool(Protocol):
    """A contiguous piece of memory with an address that a transport can register."""

    segment: str
    device: int
    size_bytes: int

    @property
    def address(self) -> int:
        """Return where it begins."""

    def fill(self, words: Words) -> None:
        """Write contents, uint64[size / 8]."""

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units, or everything."""

    def words(self) -> Words:
        """Return the contents in host memory."""

    def awake(self) -> None:
        """Keep what moves the bytes from resting during the next transfer."""


class HostPool:
    """Host memory."""

    segment = "DRAM"
    device = 0

    def __init__(self, size_bytes: int) -> None:
        """Allocate and touch every page, so that no transfer is the first to do so."""
        self.size_bytes = size_bytes
        self._words = np.full(size_bytes // WORD_BYTES, POISON)

    @property
    def address(self) -> int:
        """Return where it begins."""
        return int(self._words.ctypes.data)

    def fill(self, words: Words) -> None:
        """Write contents."""
        self._words[:] = words

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units, or everything."""
        if into is None:
            self._words[:] = POISON
        else:
            units_of(self._words, unit_bytes)[into] = POISON

    def words(self) -> Words:
        """Return the contents themselves."""
        return self._words

    def awake(self) -> None:
        """Do nothing: processors wake by themselves."""


class GpuPool:
    """Memory of one GPU, through PyTorch."""

    segment = "VRAM"

    def __init__(self, size_bytes: int, device: int) -> None:
        """Allocate on a GPU; raise GpuUnavailable without it."""
        torch = _torch()
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if device >= found:
            raise GpuUnavailable(f"GPU {device} is asked for and {found} are here")
        self.device = device
        self.size_bytes = size_bytes
        self._side: Any = None
        self._host: Any = None
        self._tensor = torch.empty(
            size_bytes // WORD_BYTES, dtype=torch.int64, device=f"cuda:{device}"
        )
        self._poison = int(np.array(POISON).view(np.int64))
        self.poison(WORD_BYTES, None)

    @property
    def address(self) -> int:
        """Return where it begins on the device."""
        return int(self._tensor.data_ptr())

    def fill(self, words: Words) -> None:
        """Write contents and wait for them to be visible."""
        self._tensor.copy_(_torch().from_numpy(words.view(np.int64)))
        self._settle()

    def poison(self, unit_bytes: int, into: Units | None) -> None:
        """Overwrite units, or everything, and wait."""
        if into is None:
            self._tensor.fill_(self._poison)
        else:
            words = unit_bytes // WORD_BYTES
            whole = self.size_bytes // unit_bytes
            rows = _torch().from_numpy(into).to(self._tensor.device, dtype=_torch().int64)
            self._tensor[: whole * words].view(whole, words).index_fill_(0, rows, self._poison)
        self._settle()

    def words(self) -> Words:
        """Copy the contents to the host, to where they were copied before."""
        if self._host is None:
            pinned = self._tensor.is_cuda
            self._host = _torch().empty_like(self._tensor, device="cpu", pin_memory=pinned)
        self._host.copy_(self._tensor)
        found: Words = self._host.numpy().view(np.uint64)
        return found

    def awake(self) -> None:
        """Let one thread of the GPU spin for some milliseconds.

        A GPU that rests lowers its clocks; one that decodes does not rest.
        """
        torch = _torch()
        with torch.cuda.device(self.device):
            if self._side is None:
                self._side = torch.cuda.Stream()
            if not self._side.query():
                return  # it spins still: nothing may pile up
            with torch.cuda.stream(self._side):
                torch.cuda._sleep(SPIN_CYCLES)  # noqa: SLF001 - the one kernel that does nothing

    def _settle(self) -> None:
        _torch().cuda.synchronize(self.device)


def open_pool(memory: str, size_bytes: int, device: int) -> Pool:
    """Return a pool in ``host`` or ``gpu`` memory."""
    return HostPool(size_bytes) if memory == "host" else GpuPool(size_bytes, device)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise GpuUnavailable("GPU memory needs PyTorch: pip install -e '.[gpu]'") from None
    return torch
