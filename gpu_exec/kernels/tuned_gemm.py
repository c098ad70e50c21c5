"""Linear layers by cuBLASLt with the algorithm that measures fastest for each shape.

The library's own choice is a guess from the shape; it also lists candidates. Each shape is timed
once, over weights that do not stay in the cache, before any graph is captured.
"""

from __future__ import annotations

import ctypes as c
from typing import Any, ClassVar

from oasis_sim.errors import GpuUnavailable, RunFailed

CANDIDATES = 64
WORKSPACE_BYTES = 64 << 20
TIMED_BYTES = 256 << 20
MOST_COPIES = 16
REPEATS = 3
_BF16, _F32, _COMPUTE_F32, _TRANSPOSE = 14, 0, 68, 1
_TRANS_A, _MAX_WORKSPACE = 3, 1
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")


class _Candidate(c.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_: ClassVar = [
        ("algorithm", c.c_uint64 * 8),
        ("workspace", c.c_size_t),
        ("state", c.c_int),
        ("waves", c.c_float),
        ("reserved", c.c_int * 4),
    ]


class _Product:
    """Hold the descriptors of out[rows, columns] = x[rows, depth] weight[columns, depth]^T (+ r).

    The library counts by columns: it computes out^T [columns, rows] = weight x^T.
    """

    def __init__(self, lt: Any, handle: Any, shape: tuple[int, int, int], add: bool) -> None:
        rows, columns, depth = shape
        self._lt, self._handle = lt, handle
        self.operation = self._new("cublasLtMatmulDescCreate", _COMPUTE_F32, _F32)
        transpose = c.c_int(_TRANSPOSE)
        size = c.c_size_t(c.sizeof(transpose))
        call(lt.cublasLtMatmulDescSetAttribute(self.operation, _TRANS_A, c.byref(transpose), size))
        self.a = self._layout(depth, columns)
        self.b = self._layout(depth, rows)
        self.out = self._layout(columns, rows)
        self.beta = c.c_float(1.0 if add else 0.0)

    def _new(self, name: str, *arguments: Any) -> c.c_void_p:
        made = c.c_void_p()
        call(getattr(self._lt, name)(c.byref(made), *arguments))
        return made

    def _layout(self, rows: int, columns: int) -> c.c_void_p:
        sizes = (c.c_uint64(rows), c.c_uint64(columns), c.c_int64(rows))
        return self._new("cublasLtMatrixLayoutCreate", _BF16, *sizes)

    def candidates(self) -> list[_Candidate]:
        """Return the algorithms that the library offers, its own choice first."""
        preference = self._new("cublasLtMatmulPreferenceCreate")
        limit = c.c_uint64(WORKSPACE_BYTES)
        size = c.c_size_t(8)
        lt = self._lt
        call(
            lt.cublasLtMatmulPreferenceSetAttribute(
                preference, _MAX_WORKSPACE, c.byref(limit), size
            )
        )
        found, count = (_Candidate * CANDIDATES)(), c.c_int()
        layouts = (self.a, self.b, self.out, self.out)
        call(
            lt.cublasLtMatmulAlgoGetHeuristic(
                self._handle,
                self.operation,
                *layouts,
                preference,
                CANDIDATES,
                found,
                c.byref(count),
            )
        )
        call(lt.cublasLtMatmulPreferenceDestroy(preference))
        return [one for one in found[: count.value] if one.state == 0]

    def run(self, algorithm: _Candidate, tensors: tuple[Any, Any, Any, Any], workspace: Any) -> int:
        """Enqueue the product on the current stream; return the library's status."""
        import torch

        x, weight, out, residual = (
            c.c_void_p(t.data_ptr()) if t is not None else None for t in tensors
        )
        status: int = self._lt.cublasLtMatmul(
            self._handle,
            self.operation,
            c.byref(c.c_float(1.0)),
            weight,
            self.a,
            x,
            self.b,
            c.byref(self.beta),
            out if residual is None else residual,
            self.out,
            out,
            self.out,
            c.byref(algorithm.algorithm),
            c.c_void_p(workspace.data_ptr()),
            c.c_size_t(WORKSPACE_BYTES),
            c.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return status


class _Tuner:
    """Own the library's handle and the chosen algorithm of every shape, on one device."""

    def __init__(self) -> None:
        import torch

        self._lt = _load()
        self._handle = c.c_void_p()
        call(self._lt.cublasLtCreate(c.byref(self._handle)))
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._chosen: dict[tuple[tuple[int, int, int], bool], tuple[_Product, _Candidate]] = {}

    def multiply(self, x: Any, weight: Any, out: Any, residual: Any) -> None:
        """Compute out = x weight^T (+ residual), choosing the algorithm at first sight."""
        shape = (x.shape[0], weight.shape[0], x.shape[1])
        key = (shape, residual is not None)
        if key not in self._chosen:
            self._chosen[key] = self._choose(shape, (x, weight, out, residual))
        product, algorithm = self._chosen[key]
        call(product.run(algorithm, (x, weight, out, residual), self._workspace))

    def _choose(
        self, shape: tuple[int, int, int], tensors: tuple[Any, Any, Any, Any]
    ) -> tuple[_Product, _Candidate]:
        x, weight, out, residual = tensors
        product = _Product(self._lt, self._handle, shape, residual is not None)
        copies = min(MOST_COPIES, max(1, TIMED_BYTES // (2 * weight.numel())))
        weights = [weight, *(weight.clone() for _ in range(copies - 1))]
        trial = out.clone()  # a residual may be the output itself
        times: list[tuple[float, int, _Candidate]] = []
        for one in product.candidates():
            sets = [(x, w, trial, residual) for w in weights]
            time = self._time(product, one, sets)
            if time is not None:
                times.append((time, len(times), one))
        if not times:
            raise RunFailed(f"cuBLASLt offers no algorithm for rows, columns, depth {shape}")
        return product, min(times)[2]

    def _time(self, product: _Product, one: _Candidate, sets: list[Any]) -> float | None:
        """Return the time of a graph of products over several weights, None if one fails."""
        import torch

        if product.run(one, sets[0], self._workspace) != 0:
            return None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for tensors in sets:
                call(product.run(one, tensors, self._workspace))
        best = float("inf")
        for _ in range(REPEATS + 1):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            torch.cuda.synchronize()
            best = min(best, first.elapsed_time(last))
        return best


_TUNERS: dict[int, _Tuner] = {}


def tuned_gemm(x: Any, weight: Any, out: Any, residual: Any) -> None:
    """Compute out = x weight^T (+ residual); x [rows, k], weight [columns, k], bf16, contiguous."""
    device = x.device.index
    if device not in _TUNERS:
        _TUNERS[device] = _Tuner()
    _TUNERS[device].multiply(x, weight, out, residual)


def _load() -> Any:
    """Return the library that PyTorch has loaded."""
    for name in _NAMES:
        try:
            return c.CDLL(name)
        except OSError:
            continue
    raise GpuUnavailable(f"none of {', '.join(_NAMES)} can be loaded")


def call(status: int) -> None:
    """Raise RunFailed for a status other than success."""
    if status != 0:
        raise RunFailed(f"cuBLASLt: status {status}")
