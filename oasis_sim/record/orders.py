"""Block orders by an upper bound of the scores, and attention mass by block.

Bound of a block for a query q: sum over d of max(q_d min_d, q_d max_d) over the block's
coordinate-wise minimum and maximum keys (Quest, Tang et al. 2024). The query heads of a KV head
are joined by their largest bound unless another join is asked for. Scores are computed in float64,
where products of float32 are exact, so that orders do not depend on the order of summation. Ties go
to the lower block id.
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
    return _head_bounds(query, low, high).amax(dim=1).transpose(0, 1)


def _head_bounds(query: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the bound of each block by each query head of a group, float64 [H, G, R, N]."""
    heads = low.shape[0]
    grouped = query.double().reshape(heads, -1, *query.shape[1:])
    positive = grouped.clamp(min=0.0) @ high.transpose(1, 2)[:, None]
    negative = grouped.clamp(max=0.0) @ low.transpose(1, 2)[:, None]
    return positive + negative


def joined_scores(
    query: Tensor, low: Tensor, high: Tensor, listed: Tensor, join: str, scaling: float
) -> Tensor:
    """Return one score per block, row and KV head, float64 [R, H, N].

    Shapes as in ``bound_scores``; listed bool [R, N]; ``join`` as in ``join_heads``.
    """
    return join_heads(_head_bounds(query, low, high), listed, join, scaling)


def join_heads(bounds: Tensor, listed: Tensor, join: str, scaling: float) -> Tensor:
    """Make one score of those by the query heads of a group, [H, G, R, N] to [R, H, N].

    listed bool [R, N]. ``join`` is max, mean, min or softmax-mean: ``softmax-mean`` takes the mean
    over the heads of the softmax, over the listed blocks, of bound times attention scaling (as the
    logarithm of the sum, which orders alike).
    """
    if join == "softmax-mean":
        shares = (bounds * scaling).masked_fill(~listed, -torch.inf).log_softmax(dim=-1)
        return shares.logsumexp(dim=1).transpose(0, 1)
    joins = {"max": torch.amax, "mean": torch.mean, "min": torch.amin}
    joined: Tensor = joins[join](bounds, dim=1)
    return joined.transpose(0, 1)


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
    join: str = "mean",
) -> Tensor:
    """Return softmax attention mass by block, mean over each group's heads, float64 [R, H, NB].

    ``join`` max takes the largest share of a group's heads instead, block by block.
    query [Hq, R, d], keys [H, S, d]; a row sees the keys up to its own position.
    NB = S // block_tokens + 1, so that the block of the next token has a place. A few rows at a
    time bound the memory.
    """
    heads, tokens = keys.shape[:2]
    blocks = tokens // block_tokens + 1
    wide = keys.double()
    columns = torch.arange(tokens, device=keys.device)
    out = torch.zeros((query.shape[1], heads, blocks), dtype=torch.float64, device=keys.device)
    for start in range(0, query.shape[1], _MASS_ROWS):
        part = slice(start, start + _MASS_ROWS)
        rows = query[:, part].double()
        # One product per KV head: a broadcast one would copy the keys for every query head.
        scores = rows.reshape(heads, -1, rows.shape[2]) @ wide.transpose(1, 2) * scaling
        scores = scores.view(heads, -1, rows.shape[1], tokens)
        hidden = columns[None, :] > positions[part, None]
        if span is not None:
            hidden |= columns[None, :] <= positions[part, None] - span
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        if join == "mean":
            shares = _by_block(weights.mean(dim=1), blocks, block_tokens)
        else:
            shares = _by_block(weights, blocks, block_tokens).amax(dim=1)
        out[part] = shares.transpose(0, 1)
    return out


def _by_block(weights: Tensor, blocks: int, block_tokens: int) -> Tensor:
    """Return the sums over each block's tokens, [..., S] to [..., blocks]."""
    rest = blocks * block_tokens - weights.shape[-1]
    padded = torch.nn.functional.pad(weights, (0, rest))
    return padded.unflatten(-1, (blocks, block_tokens)).sum(dim=-1)
