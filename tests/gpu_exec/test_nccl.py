"""NCCL's C interface, with a library that notes what is called: calls, settings, failures."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exec.nccl import NcclGroup
from oasis_sim.errors import GpuUnavailable, RunFailed


def test_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is missing, the message says what to install and what works without."""

    def nothing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", nothing)
    with pytest.raises(GpuUnavailable, match=r"nvidia-nccl-cu13.*--no-all-reduce"):
        NcclGroup(2)


class FakeNccl:
    """The C interface: notes calls; `code` is what the next calls return."""

    def __init__(self) -> None:
        def text(code: int) -> bytes:
            return b"unhandled cuda error"

        self.code = 0
        self.calls: list[tuple[Any, ...]] = []
        self.ncclGetErrorString = text

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            plain = [getattr(value, "value", value) for value in arguments]
            self.calls.append((name, *plain))
            if name == "ncclCommInitAll":
                arguments[0][:] = [0x1000 + rank for rank in range(arguments[1])]
            return self.code

        return call


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """Replace the library."""
    library = FakeNccl()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return library


def test_calls_of_nccl(nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum is in place, bf16, on the current stream and the rank's own communicator."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    group = NcclGroup(2)
    group.all_reduce(1, SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: 10))
    group.close()
    group.abort()  # after close there is nothing to end
    names = [call[0] for call in nccl.calls]
    assert ["ncclCommInitAll", "ncclAllReduce", *["ncclCommDestroy"] * 2] == names
    assert ("ncclAllReduce", 4096, 4096, 10, 9, 0, 0x1001, 77) == nccl.calls[1]
    assert ("1", "LL") == (os.environ["NCCL_GRAPH_REGISTER"], os.environ["NCCL_PROTO"])


def test_an_error_of_nccl_is_told(nccl: FakeNccl) -> None:
    """A call that fails names itself, the text and the code."""
    nccl.code = 1
    with pytest.raises(RunFailed, match=r"ncclCommInitAll: unhandled cuda error \(NCCL error 1\)"):
        NcclGroup(2)


def test_nothing_is_summed_after_an_abort(nccl: FakeNccl) -> None:
    """A communicator that is gone is not touched again, by the thread of no device."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    group = NcclGroup(2)
    group.abort()
    before = list(nccl.calls)
    with pytest.raises(RunFailed, match="no longer joined"):
        group.all_reduce(0, SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: 10))
    group.close()
    assert before == nccl.calls
