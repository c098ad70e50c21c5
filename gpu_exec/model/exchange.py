"""Between a model's tensors, heads first, and those of the kernels, rows first and padded."""

from __future__ import annotations

from torch import Tensor

from gpu_exec.model.memory import padded, token_pairs
from gpu_exec.model.page import PageShape
from oasis_sim.record.attention import LayerInput


def token_rows(shape: PageShape, inputs: LayerInput) -> Tensor:
    """Return the rows' keys and values as the kernels take them, bfloat16 [R, 2 H, d]."""
    both: Tensor = token_pairs(shape, inputs.key.transpose(0, 1), inputs.value.transpose(0, 1))
    return both


def kernel_query(shape: PageShape, query: Tensor) -> Tensor:
    """Return queries [Hq, R, d] as the kernels take them, bfloat16 [R, Hq, d]."""
    found: Tensor = padded(shape, query.transpose(0, 1).bfloat16()).contiguous()
    return found


def model_output(out: Tensor, inputs: LayerInput) -> Tensor:
    """Return the kernels' output [R, Hq, d] as the model takes it, [Hq, R, d]."""
    return out[..., : inputs.query.shape[2]].transpose(0, 1).to(inputs.query.dtype)
