"""Block orders by an upper bound of the scores, and attention mass by block.

Bound of a block for a query q: sum over d of max(q_d min_d, q_d max_d) over the block's
coordinate-wise minimum and maximum keys (Quest, Tang et al. 2024), the largest over the query
heads of a KV head. Scores are computed in float64, where products of float32 are exact, so that
orders do not depend on the order of summation. Ties go to the lower block id.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASS_ROWS = 8


def block_extremes(keys: Tensor, block_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum key of every complete block, [H, N, d] float64 each."""
    heads, tokens, dim = keys.shape
    blocks = tokens // block_tokens
    split = keys[:, : blocks * block_tokens].reshape(heads, blocks, block_tokens, dim)
    return split.amin(dim=2).double(), split.amax(dim=2).double()


def bound_scores(query: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the bound of each block for each row, float64 [R, H, N].

    query [Hq, R, d]; low, high [H, N, d]. The maximum is over the Hq / H heads of a group.
    """
    heads = low.shape[0]
    grouped = query.double().reshape(heads, -1, *query.shape[1:])
    positive = grouped.clamp(min=0.0) @ high.transpose(1, 2)[:, None]
    negative = grouped.clamp(max=0.0) @ low.transpose(1, 2)[:, None]
    return (positive + negative).amax(dim=1).transpose(0, 1)


def listed_blocks(positions: Tensor, blocks: int, block_tokens: int, span: int | None) -> Tensor:
    """Return which blocks an order at a position may list, bool [R, N].

    Complete blocks (id < position // block_tokens); with a span, those that the row still sees
    some token of.
    """
    ids = torch.arange(blocks, device=positions.device)
    listed = ids[None, :] < torch.div(positions, block_tokens, rounding_mode="floor")[:, None]
    if span is not None:
        last_token = (ids + 1) * block_tokens - 1
        listed &= last_token[None, :] > positions[:, None] - span
    return listed


def order_blocks(scores: Tensor, listed: Tensor) -> Tensor:
    """Return the listed blocks best first, then -1, int64 [R, H, N].

    scores [R, H, N], listed [R, N]; equal scores by ascending id.
    """
    ranked = torch.where(listed[:, None, :], scores, -torch.inf)
    order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices
    rank = torch.arange(order.shape[-1], device=order.device)
    return torch.where(rank[None, None, :] < listed.sum(dim=1)[:, None, None], order, -1)


def block_mass(
    query: Tensor,
    keys: Tensor,
    positions: Tensor,
    *,
    scaling: float,
    block_tokens: int,
    span: int | None,
) -> Tensor:
    """Return softmax attention mass by block, mean over each group's heads, float64 [R, H, NB].

    query [Hq, R, d], keys [H, S, d]; a row sees the keys up to its own position.
    NB = S // block_tokens + 1, so that the block of the next token has a place. A few rows at a
    time bound the memory.
    """
    heads, tokens = keys.shape[:2]
    blocks = tokens // block_tokens + 1
    wide = keys.double()
    columns = torch.arange(tokens, device=keys.device)
    shape = (query.shape[1], heads, blocks * block_tokens)
    out = torch.zeros(shape, dtype=torch.float64, device=keys.device)
    for start in range(0, query.shape[1], _MASS_ROWS):
        part = slice(start, start + _MASS_ROWS)
        grouped = query[:, part].double().reshape(heads, -1, *query[:, part].shape[1:])
        scores = (grouped @ wide[:, None].transpose(2, 3)) * scaling
        hidden = columns[None, :] > positions[part, None]
        if span is not None:
            hidden |= columns[None, :] <= positions[part, None] - span
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        out[part, :, :tokens] = weights.mean(dim=1).transpose(0, 1)
    return out.reshape(query.shape[1], heads, blocks, block_tokens).sum(dim=-1)
