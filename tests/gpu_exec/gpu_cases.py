"""Small configurations and their contents for the tests that need a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_exec.kernels.arguments import StepArguments
from gpu_exec.kernels.config import StageSwitches, StepConfig, StepShape
from gpu_exec.kernels.layout import pack_bounds, unpack_bounds, unpack_units
from gpu_exec.kernels.memory import StepMemory


def missing_gpu() -> str | None:
    """Return why the kernels cannot run here, or None."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return "no Hopper GPU"
    return None


needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(missing_gpu() is not None, reason=f"{missing_gpu()}"),
]


def small_config(**changes: Any) -> StepConfig:
    """Return a configuration of two small layers."""
    group = changes.pop("group", 4)
    heads = changes.pop("kv_heads", 2)
    layers = changes.pop("layers", 2)
    shape = StepShape(layers, 256, 512, group * heads, heads, 1024, draft_vocab=256)
    defaults: dict[str, Any] = {
        "batch": 3,
        "context_capacity": 700,
        "chosen_blocks": 8,
        "pool_blocks": 8,
        "cap_blocks": 3,
        "host_bytes": 64 << 20,
        "stages": StageSwitches(linear=False, draft=False),
    }
    defaults.update(changes)
    return StepConfig(shape=shape, **defaults)


def make_memory(config: StepConfig, seed: int) -> tuple[StepMemory, StepArguments]:
    """Allocate a step's memory and fill pool, keys and queries with fresh normal numbers."""
    import torch

    torch.manual_seed(seed)
    memory = StepMemory(config)
    memory.pool.normal_()
    memory.qkv.normal_()
    if not config.dense:
        fill_keys(config, memory)
    return memory, StepArguments(config, memory)


def fill_keys(config: StepConfig, memory: StepMemory) -> None:
    """Write random bounds with min <= max, in the layout of the key tiles."""
    import torch

    size = (config.shape.layers * config.pairs, config.max_blocks, 128)
    a, b = torch.randn(size), torch.randn(size)
    kind, raw = (
        (torch.float8_e4m3fn, torch.uint8)
        if config.key_format == "fp8"
        else (torch.bfloat16, torch.int16)
    )
    high, low = (x.to(kind).view(raw).numpy() for x in (torch.maximum(a, b), torch.minimum(a, b)))
    tiles = torch.from_numpy(pack_bounds(high, low)).view(raw)
    memory.keys.view(raw).copy_(tiles.view(memory.keys.shape))


def host(tensor: Any) -> np.ndarray:
    """Return a device tensor as fp64 on the host."""
    result: np.ndarray = tensor.detach().double().cpu().numpy()
    return result


def units_of(config: StepConfig, memory: StepMemory, layer: int, pair: int) -> tuple:
    """Return K and V [slots, b, 128] of one pair in fp64."""
    first = pair * config.slots_per_pair
    part = memory.pool[layer, first : first + config.slots_per_pair]
    return unpack_units(host(part))


def bounds_of(memory: StepMemory, layer: int, pair: int) -> tuple:
    """Return max and min [blocks, 128] of one pair in fp64."""
    tiles = memory.keys[layer, pair : pair + 1]
    if tiles.element_size() == 1:
        import torch

        raw = unpack_bounds(tiles.cpu().numpy())
        values = [
            torch.from_numpy(r.copy()).view(torch.float8_e4m3fn).double().numpy() for r in raw
        ]
        return values[0][0], values[1][0]
    high, low = unpack_bounds(host(tiles))
    return high[0], low[0]


def visible_local(config: StepConfig, keys: np.ndarray, last: int) -> np.ndarray:
    """Return the local entries [tokens, 128] of positions up to ``last`` from the pair's slots.

    The active block and, when ``last`` is its successor's first token, the other local slot.
    """
    b, local = config.block_tokens, config.slots_per_pair - 2
    block = last // b
    return keys[local + block % 2, : last % b + 1]
