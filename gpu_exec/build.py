"""Compile the CUDA kernels with nvcc (and the selection core for the CPU), cached by content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

from oasis_sim.errors import GpuUnavailable, RunFailed

_NVCC_FLAGS = (
    "-gencode=arch=compute_90a,code=sm_90a",
    "-std=c++17",
    "-O3",
    "-shared",
    "-Xcompiler",
    "-fPIC",
)
_HOST_FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC", "-pthread")
_TIMEOUT_S = 300


def source_dir() -> Path:
    """Return the folder of the kernel sources."""
    return Path(str(files("gpu_exec.kernels").joinpath("csrc")))


def find_nvcc() -> str | None:
    """Return the CUDA compiler: CUDA_HOME, the path, or the usual place."""
    home = os.environ.get("CUDA_HOME")
    names = [str(Path(home, "bin", "nvcc"))] if home else []
    for name in [*names, "nvcc", "/usr/local/cuda/bin/nvcc"]:
        found = shutil.which(name)
        if found:
            return found
    return None


def build_kernels(force: bool = False) -> Path:
    """Return the shared library of the GPU kernels, compiling it when it is not there yet.

    A library built beside the sources is used as it is when it came from the same text.
    Raises GpuUnavailable when there is none and no nvcc.
    """
    name = f"oasis_kernels-{_digest(_NVCC_FLAGS)}.so"
    found = None if force else _find(name)
    if found is not None:
        return found
    nvcc = find_nvcc()
    if nvcc is None:
        raise GpuUnavailable("no nvcc found to compile the kernels; install the CUDA toolkit 12.8+")
    return _compile([nvcc, *_NVCC_FLAGS], "api.cu", name)


def build_selection_for_cpu() -> Path | None:
    """Return the selection core compiled for the CPU, or None where there is no C++ compiler."""
    name = f"select_cpu-{_digest(_HOST_FLAGS)}.so"
    found = _find(name)
    if found is not None:
        return found
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    return _compile([compiler, *_HOST_FLAGS], "select_cpu.cpp", name)


def _digest(flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for path in sorted(source_dir().iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _places() -> tuple[Path, Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return source_dir().parent / "build", cache / "oasis-sim"


def _find(name: str) -> Path | None:
    return next((place / name for place in _places() if (place / name).is_file()), None)


def _compile(command: list[str], source: str, name: str) -> Path:
    beside, cache = _places()
    place = beside if os.access(beside.parent, os.W_OK) else cache
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f"{name}.{os.getpid()}.tmp"
    full = [*command, "-o", str(temporary), str(source_dir() / source)]
    try:
        done = subprocess.run(full, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RunFailed(f"compiling {source} failed: {done.stderr.strip()[-2000:]}")
        os.replace(temporary, place / name)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"compiling {source} took more than {_TIMEOUT_S} s") from error
    finally:
        temporary.unlink(missing_ok=True)
    return place / name
