"""Load the compiled kernels and call them on torch's current stream."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from gpu_exec.build import build_kernels
from oasis_sim.errors import RunFailed


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    path = build_kernels()
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built on a machine with other system libraries
        library = ctypes.CDLL(str(build_kernels(force=True)))
    library.oasis_error_text.restype = ctypes.c_char_p
    code = library.oasis_preload()
    if code != 0:
        raise RunFailed(f"loading the kernels: {library.oasis_error_text(code).decode()}")
    return library


def call(name: str, *arguments: Any) -> None:
    """Call one entry point; structures go by reference; raise RunFailed on a CUDA error."""
    converted = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in arguments]
    code = getattr(_library(), name)(*converted)
    if code != 0:
        text = _library().oasis_error_text(code).decode()
        raise RunFailed(f"{name}: {text} (CUDA error {code})")


def open_team(threads: int, parts_ahead: int) -> ctypes.c_void_p:
    """Start host threads that submit copies on the current device."""
    start = _library().oasis_team_open
    start.restype = ctypes.c_void_p
    return ctypes.c_void_p(start(threads, parts_ahead))


def close_team(team: ctypes.c_void_p) -> None:
    """End these threads."""
    end = _library().oasis_team_close
    end.restype = None
    end(team)


def launch(name: str, *arguments: Any) -> None:
    """Call one entry point whose last argument is the stream."""
    import torch

    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call(name, *arguments, stream)


def pointer(tensor: Any) -> ctypes.c_void_p:
    """Return a tensor's address as an argument."""
    return ctypes.c_void_p(tensor.data_ptr())


def wide(value: int) -> ctypes.c_longlong:
    """Return a 64-bit integer argument (plain Python ints go as 32 bits)."""
    return ctypes.c_longlong(value)
