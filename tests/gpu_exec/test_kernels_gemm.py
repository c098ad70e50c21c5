"""The persistent GEMM in Triton's interpreter: every tile written once, edges and residual."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="PyTorch is not installed")

# float16, because the interpreter hands bf16 tiles on as raw integers.
SCRIPT = """
import torch
from gpu_exec.kernels.gemm import Tiling, persistent_gemm
torch.manual_seed(7)
for rows, columns, depth in ((16, 32, 32), (33, 80, 64), (7, 4200, 32)):
    x = torch.randn(rows, depth).half()
    w = torch.randn(columns, depth).half()
    residual = torch.randn(rows, columns).half()
    tiling = Tiling(16, 32, 32, 2, 4)
    for added in (residual, None):
        out = torch.full((rows, columns), float("nan")).half()
        persistent_gemm(x, w, out, added, tiling)
        expected = x.double() @ w.double().t()
        if added is not None:
            expected += added.double()
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 1e-3, (rows, columns, depth, float(error))
"""


def test_persistent_gemm() -> None:
    """Shapes with partial tiles and more tiles than programs, against fp64."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
