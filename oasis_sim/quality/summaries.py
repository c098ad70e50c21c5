"""The summaries of keys that an index keeps of blocks, and low-rank keys' outliers.

Every kind is two tensors per block, low and high, that a query q meets as
``q+ . high + q- . low`` (q+ its positive, q- its negative part): extreme keys give an upper bound
of the block's scores, equal tensors a plain product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from oasis_sim.quality.key_index import DIRECTIONS, EXTREMES, EXTREMES_FP8, MEANS, KeyIndex
from oasis_sim.record.orders import block_extremes

LARGEST_E4M3 = 448.0

Summary = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""From keys [H, S, d] and tokens per block to low and high, float64 [H, N, d]."""


def summary_of(index: KeyIndex, prompt_keys: Tensor) -> Summary:
    """Return how an index summarises the blocks of a layer; prompt_keys [H, S, d]."""
    if index.kind == DIRECTIONS:
        count = max(1, round(index.share * prompt_keys.shape[2]))
        return partial(_projected, longest_directions(prompt_keys, count))
    kinds = {EXTREMES: block_extremes, EXTREMES_FP8: eight_bit_extremes, MEANS: block_means}
    return kinds[index.kind]


def eight_bit_extremes(keys: Tensor, block_tokens: int) -> tuple[Tensor, Tensor]:
    """Return a block's extreme keys in e4m3, the smallest rounded down, the largest up."""
    low, high = block_extremes(keys, block_tokens)
    return outward_e4m3(low, up=False), outward_e4m3(high, up=True)


def outward_e4m3(values: Tensor, *, up: bool) -> Tensor:
    """Return the smallest e4m3 number at or above each value, or the largest at or below it.

    As ``round_e4m3`` of ``gpu_exec/kernels/csrc/pointwise.cuh``: to the nearest, then one code
    outwards where that lies on the wrong side; beyond 448 it saturates. float64 in and out.
    """
    near = values.float().clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    back, code = near.double(), near.view(torch.uint8)
    wrong = back < values if up else back > values
    sign, size = code & 0x80, code & 0x7F
    inwards = (sign != 0) == up
    outer = torch.where(size < 0x7E, size + 1, size)
    moved = sign | torch.where(inwards, size - 1, outer)
    return torch.where(wrong, moved, code).view(torch.float8_e4m3fn).double()


def block_means(keys: Tensor, block_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the mean key of every complete block, twice."""
    heads, tokens, dim = keys.shape
    blocks = tokens // block_tokens
    split = keys[:, : blocks * block_tokens].reshape(heads, blocks, block_tokens, dim)
    mean = split.double().mean(dim=2)
    return mean, mean


def longest_directions(keys: Tensor, count: int) -> Tensor:
    """Return the projection on the ``count`` directions in which keys are longest, [H, d, d]."""
    wide = keys.double()
    axes = torch.linalg.eigh(wide.transpose(1, 2) @ wide).eigenvectors[..., -count:]
    return axes @ axes.transpose(1, 2)


def _projected(projection: Tensor, keys: Tensor, block_tokens: int) -> tuple[Tensor, Tensor]:
    return block_means(keys.double() @ projection, block_tokens)


def outlier_blocks(keys: Tensor, block_tokens: int, count: int) -> Tensor:
    """Return the blocks that their mean key describes worst, bool [H, N].

    Measured by the smallest cosine of a block's keys with their mean.
    """
    mean, _ = block_means(keys, block_tokens)
    heads, blocks, dim = mean.shape
    split = keys[:, : blocks * block_tokens].reshape(heads, blocks, block_tokens, dim).double()
    alike = torch.cosine_similarity(split, mean[:, :, None], dim=-1).amin(dim=-1)
    chosen = alike.topk(min(count, blocks), largest=False).indices
    return torch.zeros_like(alike, dtype=torch.bool).scatter_(1, chosen, value=True)
