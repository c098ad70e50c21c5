"""NCCL through its C interface: one process, one communicator and one thread per GPU.

NCCL warns that graphs on several GPUs of one process may lock each other up. So here a thread per
device launches, every graph is captured before any runs, and captured and plain all-reduces are
never under way together (https://docs.nvidia.com/deeplearning/nccl, "Using NCCL with CUDA Graphs").
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oasis_sim.errors import GpuUnavailable, RunFailed

LIBRARY = "libnccl.so.2"
SETTINGS = {
    "NCCL_GRAPH_MIXING_SUPPORT": "0",  # nothing is mixed: see above
    "NCCL_GRAPH_REGISTER": "0",  # buffers would be exchanged while a graph is captured
    "NCCL_NVLS_ENABLE": "0",  # no NVLink multicast, as where the all-reduces were measured
    "NCCL_PROTO": "LL",  # flags with the data; a fence waits behind a gather's reads over PCIe
}
"""Of the environment, unless the user has set them."""
_BFLOAT16, _SUM = 9, 0
"""Of the enumerations ncclDataType_t and ncclRedOp_t."""


def load_nccl() -> Any:
    """Return the library, PyTorch's own where it has one; raise GpuUnavailable without it."""
    package = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = [str(Path(place, "lib", LIBRARY)) for place in _folders(package)]
    for name in (LIBRARY, *places):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise GpuUnavailable(
        f"summing over devices needs NCCL, and {LIBRARY} was not found; install the pip package "
        "nvidia-nccl-cu13, or replay with --no-all-reduce"
    )


def _folders(package: Any) -> list[str]:
    return list(package.submodule_search_locations or []) if package is not None else []


class NcclGroup:
    """The communicators of devices 0 to n - 1; each is used by the thread of its device."""

    def __init__(self, devices: int) -> None:
        """Join the devices; raises GpuUnavailable without NCCL, RunFailed when it cannot."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.ranks = devices
        self._library = load_nccl()
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._communicators = (ctypes.c_void_p * devices)()
        numbers = (ctypes.c_int * devices)(*range(devices))
        self._call("ncclCommInitAll", self._communicators, devices, numbers)
        self._open = True

    @property
    def version(self) -> str:
        """Return NCCL's version, such as 2.28.9."""
        number = ctypes.c_int()
        self._call("ncclGetVersion", ctypes.byref(number))
        major, rest = divmod(number.value, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def all_reduce(self, rank: int, x: Any) -> None:
        """Enqueue the sum of a bf16 tensor over all devices, in place, on the current stream.

        All devices must enqueue the same sums in the same order; raises RunFailed.
        """
        import torch

        if not self._open:
            raise RunFailed("the devices are no longer joined: one of them has failed")
        place, elements = ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.numel())
        communicator = ctypes.c_void_p(self._communicators[rank])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        kind = (_BFLOAT16, _SUM)
        self._call("ncclAllReduce", place, place, elements, *kind, communicator, stream)

    def abort(self) -> None:
        """End what still waits for a device that will not come; nothing can be summed after it."""
        self._leave("ncclCommAbort")

    def close(self) -> None:
        """Leave the group; the graphs that use it must be gone."""
        self._leave("ncclCommDestroy")

    def _leave(self, name: str) -> None:
        if self._open:
            self._open = False
            for communicator in self._communicators:
                getattr(self._library, name)(ctypes.c_void_p(communicator))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = self._library.ncclGetErrorString(code).decode()
            raise RunFailed(f"{name}: {text} (NCCL error {code})")
