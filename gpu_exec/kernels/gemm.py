"""A persistent GEMM that occupies fewer SMs than the GPU has, so that a gather finds room.

The library's kernels put one block on every SM; a gather that holds four SMs then costs them a
second wave. This kernel starts ``PROGRAMS`` programs, each of which works through its share of
the output tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

PROGRAMS = 128


class Tiling(NamedTuple):
    """Tile sizes and pipeline of one GEMM shape."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int


def choose_tiling(rows: int, columns: int) -> Tiling:
    """Return the fastest measured tiling (docs/gpu-kernels.md): tiles divide over the programs."""
    if rows <= 64:
        return Tiling(64, 128, 64, 5, 4)
    return Tiling(128, 64, 128, 4, 4) if columns <= 4096 else Tiling(128, 128, 64, 5, 8)


@triton.jit  # type: ignore[untyped-decorator]
def _persistent(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel
    x_desc,
    w_desc,
    out,
    residual,
    rows,
    columns,
    depth,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    programs: tl.constexpr,
    add: tl.constexpr,
):
    tiles_m = tl.cdiv(rows, bm)
    tiles = tiles_m * tl.cdiv(columns, bn)
    for tile in tl.range(tl.program_id(0), tiles, programs, flatten=True):
        first_row = (tile % tiles_m) * bm  # tiles that share weights run at the same time
        first_col = (tile // tiles_m) * bn
        acc = tl.zeros((bm, bn), dtype=tl.float32)
        for k in range(tl.cdiv(depth, bk)):
            x = x_desc.load([first_row, k * bk])
            w = w_desc.load([first_col, k * bk])
            acc = tl.dot(x, w.T, acc)
        row = first_row + tl.arange(0, bm)[:, None]
        col = first_col + tl.arange(0, bn)[None, :]
        at = row.to(tl.int64) * columns + col
        inside = (row < rows) & (col < columns)
        if add:
            acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


def persistent_gemm(x: Any, weight: Any, out: Any, residual: Any, tiling: Any = None) -> None:
    """Compute out = x weight^T (+ residual); x [rows, k], weight [columns, k], contiguous."""
    rows, depth = x.shape
    columns = weight.shape[0]
    t = tiling or choose_tiling(rows, columns)
    tiles = triton.cdiv(rows, t.rows) * triton.cdiv(columns, t.columns)
    grid = min(PROGRAMS, tiles)
    _persistent[(grid,)](
        TensorDescriptor.from_tensor(x, [t.rows, t.depth]),
        TensorDescriptor.from_tensor(weight, [t.columns, t.depth]),
        out,
        out if residual is None else residual,
        rows,
        columns,
        depth,
        bm=t.rows,
        bn=t.columns,
        bk=t.depth,
        programs=grid,
        add=residual is not None,
        num_stages=t.stages,
        num_warps=t.warps,
    )
