"""Choose how a step arranges its transfers: what measured best on an H200 (docs/gpu-kernels.md)."""

from __future__ import annotations

from dataclasses import replace

from gpu_exec.kernels.config import GRAPH_TRANSPORTS, HEAD_DIM, StepConfig

LINK_BYTES_PER_S = 51e9
READ_BYTES_PER_S = 4.2e12


def window_ms(config: StepConfig) -> float:
    """Return about how long attention, scan and draft attention of one step read HBM."""
    shape = config.shape
    tokens = (config.chosen_blocks + 1) * config.block_tokens
    element = 1 if config.key_format == "fp8" else 2
    attention = tokens * 2 * HEAD_DIM * 2
    scan = config.context_capacity // config.block_tokens * 2 * HEAD_DIM * element
    layers = config.pairs * shape.layers * (attention + scan)
    draft = config.pairs * config.context_capacity * 2 * HEAD_DIM * 2 if config.stages.draft else 0
    return (layers + draft) / READ_BYTES_PER_S * 1e3


def link_ms(config: StepConfig, units_per_step: float) -> float:
    """Return how long the link needs for the units of one step."""
    return units_per_step * config.unit_bytes / LINK_BYTES_PER_S * 1e3


def best_arrangement(config: StepConfig, units_per_step: float) -> StepConfig:
    """Return ``config`` with gathers beside attention only where all units fit there.

    That keeps the linear layers at full speed. Where the link is the bottleneck the gather stays
    resident instead and never pauses.
    """
    if config.dense or config.transport not in GRAPH_TRANSPORTS:
        return config
    fits = link_ms(config, units_per_step) <= window_ms(config)
    return replace(config, arrangement="window" if fits else "resident")
