"""Linear layers of the step: weights of the real shapes and the GEMM that multiplies by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_exec.kernels.config import StepConfig
from gpu_exec.kernels.memory import DraftMemory, StepMemory

Gemm = Callable[[Any, Any, Any, Any], None]


def library_gemm(x: Any, weight: Any, out: Any, residual: Any) -> None:
    """Compute out = x weight^T (+ residual) with the framework's library."""
    import torch

    if residual is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(residual, x, weight.t(), out=out)


def choose_gemm(name: str) -> Gemm:
    """Return the GEMM named in a StepConfig."""
    if name == "library":
        return library_gemm
    from gpu_exec.kernels.gemm import persistent_gemm

    return persistent_gemm


class LayerWeights:
    """Hold random weights [out, in] of every layer and of the LM head."""

    def __init__(self, config: StepConfig) -> None:
        import torch

        s = config.shape
        attention = s.query_heads * s.head_dim
        generator = torch.Generator(device="cuda").manual_seed(config.seed + 1)

        def new(*size: int) -> Any:
            weight = torch.empty(size, dtype=torch.bfloat16, device="cuda")
            return weight.normal_(0.0, 0.02, generator=generator)

        self.qkv = new(s.layers, s.qkv_width, s.hidden)
        self.o = new(s.layers, s.hidden, attention)
        self.gate_up = new(s.layers, 2 * s.intermediate, s.hidden)
        self.down = new(s.layers, s.hidden, s.intermediate)
        self.lm_head = new(s.vocab, s.hidden)
        self.norm = torch.ones(2 * s.layers + 1, s.hidden, dtype=torch.bfloat16, device="cuda")
        self.head_norm = torch.ones(2, s.head_dim, dtype=torch.bfloat16, device="cuda")


class DraftWeights:
    """Hold random weights of a one-layer draft head with EAGLE-3's shapes.

    fc: three hidden states to one; the attention reads [embedding, hidden]; own vocabulary.
    """

    def __init__(self, config: StepConfig) -> None:
        import torch

        s = config.shape
        generator = torch.Generator(device="cuda").manual_seed(config.seed + 2)

        def new(*size: int) -> Any:
            weight = torch.empty(size, dtype=torch.bfloat16, device="cuda")
            return weight.normal_(0.0, 0.02, generator=generator)

        self.fc = new(s.hidden, 3 * s.hidden)
        self.qkv = new(s.qkv_width, 2 * s.hidden)
        self.o = new(s.hidden, s.query_heads * s.head_dim)
        self.gate_up = new(2 * s.intermediate, s.hidden)
        self.down = new(s.hidden, s.intermediate)
        self.lm_head = new(s.draft_vocab, s.hidden)


def warm_up(
    gemm: Gemm,
    m: StepMemory,
    w: LayerWeights | None,
    draft: tuple[DraftMemory, DraftWeights] | None,
) -> None:
    """Call every linear layer once, so that library handles and kernels exist."""
    if w is not None:
        gemm(m.normed, w.qkv[0], m.qkv, None)
        gemm(m.attended, w.o[0], m.x, m.x)
        gemm(m.attended, w.o[0], m.x, None)
        gemm(m.normed, w.gate_up[0], m.gate_up, None)
        gemm(m.gated, w.down[0], m.x, m.x)
        gemm(m.gated, w.down[0], m.x, None)
        gemm(m.normed[: m.config.batch], w.lm_head, m.logits, None)
    if draft is not None:
        d, dw = draft
        gemm(d.features, dw.fc, d.fused, None)
        gemm(d.joined, dw.qkv, d.qkv, None)
        gemm(d.attended, dw.o, d.fused, d.fused)
        gemm(d.fused, dw.gate_up, d.gate_up, None)
        gemm(d.gated, dw.down, d.fused, None)
        gemm(d.fused, dw.lm_head, d.logits, None)
