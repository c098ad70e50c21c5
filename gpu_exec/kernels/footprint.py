"""Bytes of HBM that one request holds, and the largest batch that a KV pool allows."""

from __future__ import annotations

from dataclasses import replace

from gpu_exec.kernels.config import BYTES_PER_TOKEN_HEAD, LOCAL_SLOTS, TILE_TOKENS, StepConfig

_DRAFT_TILE_BYTES = {"bf16": TILE_TOKENS * BYTES_PER_TOKEN_HEAD}
_DRAFT_TILE_BYTES["fp8"] = _DRAFT_TILE_BYTES["bf16"] // 2


def request_bytes(config: StepConfig) -> int:
    """Return the HBM bytes of one request: pool, min/max keys, tables and the draft head's KV.

    Dense rows hold every block and nothing else.
    """
    shape = config.shape
    heads = shape.layers * shape.kv_heads
    pool = heads * config.slots_per_pair * config.unit_bytes
    if config.dense:
        return pool
    element = 1 if config.key_format == "fp8" else 2
    keys = heads * config.max_blocks * 2 * shape.head_dim * element
    tables = heads * (2 * config.pool_blocks + 2 * config.chosen_blocks) * 4
    draft_slots = -(-(config.context_capacity + 2) // TILE_TOKENS) + LOCAL_SLOTS
    draft = shape.kv_heads * draft_slots * _DRAFT_TILE_BYTES[config.draft_kv]
    return pool + keys + tables + (draft if config.stages.draft else 0)


def largest_batch(config: StepConfig, pool_bytes: int) -> StepConfig:
    """Return ``config`` with the largest batch whose requests fit ``pool_bytes``."""
    return replace(config, batch=max(1, pool_bytes // request_bytes(config)))
