"""The roofline of a run: what its bytes and operations take at the hardware's limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import RooflineBounds, StepLog
from oasis_sim.units import PS_PER_MS, PS_PER_S


@dataclass(frozen=True)
class RooflineParts:
    """Hold what steps need at least: HBM bytes read, operations, bytes over the host link."""

    read_bytes: float
    flops: float
    moved_bytes: float


def roofline_bounds(
    cost: CostModel, steps: StepLog, dense_context: np.ndarray, prefill_flops: float
) -> RooflineBounds:
    """Bound the run from below by each resource on its own, and take the largest.

    HBM: weights once per step, attended KV and compressed keys; compute: linear layers, decode
    attention and prefill at dense BF16 peak; link: every block that a step waited for, on the GPU
    that moves most. Transfers of the last step are left out, because nothing waits for them.
    """
    parts = roofline_parts(cost, steps, dense_context)
    return bounds_of(cost, parts, prefill_flops, int(steps.output_tokens.sum()), len(steps))


def bounds_of(
    cost: CostModel, parts: RooflineParts, prefill_flops: float, tokens: int, steps: int
) -> RooflineBounds:
    """Return the bounds of so many tokens in so many steps of one GPU."""
    gpu = cost.profile.gpu
    seconds = max(
        parts.read_bytes / gpu.hbm_bytes_per_s,
        (parts.flops + prefill_flops) / gpu.bf16_flops_per_s,
        parts.moved_bytes / cost.profile.pcie.bytes_per_s,
    )
    return RooflineBounds(
        step_ms_lower=seconds * PS_PER_S / PS_PER_MS / max(steps, 1),
        output_tokens_per_s_upper=tokens / seconds if seconds > 0 else 0.0,
    )


def roofline_parts(cost: CostModel, steps: StepLog, dense_context: np.ndarray) -> RooflineParts:
    """Return what the steps of a log need at least, prefill apart."""
    share, scheme = cost.share, cost.scheme
    rows = ((steps.sparse_rows + steps.dense_rows) * cost.rows_per_request).astype(np.int64)
    layers = share.model.layers
    parts = ((share.qkv, layers), (share.output_ffn, layers))
    counts, inverse = np.unique(rows, return_inverse=True)
    heads = [cost.head_rows(int(n)) for n in counts]
    weights = np.array([sum(p.bytes_read(int(n)) * k for p, k in parts if n) for n in counts])
    weights += [share.lm_head.bytes_read(n) if n else 0 for n in heads]
    flops = np.array([sum(p.flops(int(n)) * k for p, k in parts) for n in counts])
    flops += [share.lm_head.flops(n) for n in heads]
    sparse_tokens = steps.sparse_rows.astype(np.float64) * scheme.chosen_blocks
    tokens = sparse_tokens * scheme.block_tokens + dense_context
    read = float(weights[inverse].sum()) + float(tokens.sum()) * share.kv_bytes_token
    if scheme.compressed_keys:
        sparse_context = (steps.context_tokens - dense_context).astype(np.float64)
        blocks = sparse_context / scheme.block_tokens - steps.sparse_rows
        read += float(blocks.sum()) * cost.scan_bytes_per_block() * layers
    moved = float(steps.rank_h2d_bytes[:-1].sum(axis=0).max())
    work = float(flops[inverse].sum())
    return RooflineParts(read, work, moved)
