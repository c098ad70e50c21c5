"""Allocate what a step needs on the device and in pinned host memory."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from gpu_exec.kernels import library
from gpu_exec.kernels.config import LOCAL_SLOTS, StepConfig
from oasis_sim.errors import GpuUnavailable

_STAMP_CHUNK_BYTES = 256 << 20
_MIRROR_RING_BYTES = 256 << 20
_FINITE_E4M3 = 0xBF  # clears the highest bit of the exponent: magnitudes below 2
MAX_SPLITS = 64


def require_gpu() -> Any:
    """Return torch, or raise GpuUnavailable naming what is missing."""
    try:
        import torch
    except ImportError as error:
        raise GpuUnavailable("PyTorch is not installed; install the 'gpu' extra") from error
    if not torch.cuda.is_available():
        raise GpuUnavailable("PyTorch finds no CUDA device")
    if torch.cuda.get_device_capability() != (9, 0):
        found = torch.cuda.get_device_name()
        raise GpuUnavailable(f"the kernels are built for Hopper (sm_90); found {found}")
    return torch


def fill_stamps(tensor: Any, first_unit: int, unit_elements: int) -> None:
    """Write the stamps of consecutive units into a device tensor of 16-bit elements."""
    units = tensor.numel() // unit_elements
    library.launch(
        "oasis_fill_stamps",
        library.pointer(tensor),
        library.wide(first_unit),
        library.wide(units),
        unit_elements,
    )


class HostPool:
    """Own pinned host memory; ``alias`` is the address by which the device reaches it."""

    def __init__(self, elements: int) -> None:
        torch = require_gpu()
        self.tensor = torch.empty(elements, dtype=torch.bfloat16, pin_memory=True)
        alias = ctypes.c_void_p()
        library.call("oasis_device_alias", library.pointer(self.tensor), ctypes.byref(alias))
        self.alias = alias.value

    def stamp(self, unit_elements: int) -> None:
        """Fill the pool with units that spell their own address, made on the device."""
        torch = require_gpu()
        units = max(1, _STAMP_CHUNK_BYTES // (2 * unit_elements))
        total = self.tensor.numel() // unit_elements
        scratch = torch.empty(units * unit_elements, dtype=torch.bfloat16, device="cuda")
        for first in range(0, total, units):
            part = scratch[: min(units, total - first) * unit_elements]
            fill_stamps(part, first, unit_elements)
            start = first * unit_elements
            self.tensor[start : start + part.numel()].copy_(part)


class HostCounter:
    """Own a counter in pinned memory that the device raises and the host waits for."""

    def __init__(self) -> None:
        torch = require_gpu()
        self._tensor = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.address, self.alias = library.pointer(self._tensor), ctypes.c_void_p()
        library.call("oasis_device_alias", self.address, ctypes.byref(self.alias))

    def reset(self) -> None:
        """Set it to zero; nothing on the device may be about to raise it."""
        self._tensor[0] = 0


class HostTeam:
    """Own the host threads that submit copies."""

    def __init__(self, threads: int, parts_ahead: int) -> None:
        self.key = (threads, parts_ahead)
        self.handle = library.open_team(threads, parts_ahead)
        self.close = weakref.finalize(self, library.close_team, self.handle)


class StepMemory:
    """Hold the tensors of one step; names as in docs/gpu-kernels.md."""

    def __init__(self, config: StepConfig) -> None:
        torch = require_gpu()
        library.call("oasis_preload")  # per device: nothing may be loaded while a graph is captured
        self.config = config
        shape, pairs = config.shape, config.pairs
        layers, blocks = shape.layers, config.max_blocks
        unit = config.unit_bytes // 2
        self._new = lambda *size, dtype: torch.zeros(size, dtype=dtype, device="cuda")
        new, i32, i64 = self._new, torch.int32, torch.int64
        self.pool = self._random(layers, pairs * config.slots_per_pair, unit)
        self.position = new(config.batch, dtype=i32)
        self.step, self.phase, self.stop, self.ready = (new(1, dtype=i32) for _ in range(4))
        self.released = HostCounter()
        self._team: HostTeam | None = None
        self.cursor = new(layers, dtype=i32)
        self.moved, self.mirrored, self.checked, self.wrong = (new(1, dtype=i64) for _ in range(4))
        self.tickets = new(pairs, dtype=i32)
        self.scan_tickets = new(pairs, dtype=i32)
        columns = 8 * max(1, -(-shape.group * config.rows_per_request // 8))
        columns = 32 if columns > 16 else columns
        self.partial = new(pairs * MAX_SPLITS * columns * 130, dtype=torch.float32)
        self.table_count: Any = None
        if config.dense:
            self._dense_table()
        else:
            self._sparse_state(blocks)
        self._activations()

    def team(self, threads: int, parts_ahead: int) -> HostTeam:
        """Return the team of so many threads; one is kept."""
        if self._team is None or self._team.key != (threads, parts_ahead):
            if self._team is not None:
                self._team.close()
            self._team = HostTeam(threads, parts_ahead)
        return self._team

    @property
    def key_tiles(self) -> int:
        """Key tiles per pair."""
        return self.config.max_blocks // 16

    def _random(self, *size: int) -> Any:
        """Return bf16 values of magnitude 0.5 to 1 with random signs."""
        import torch

        tensor = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        fill_stamps(tensor, 1 << 40, size[-1])
        return tensor

    def _dense_table(self) -> None:
        """Place the blocks of all pairs at random, as a paged cache does after a while."""
        import torch

        c = self.config
        generator = torch.Generator(device="cuda").manual_seed(c.seed)
        order = torch.randperm(c.pairs * c.max_blocks, device="cuda", generator=generator)
        unit = order // c.max_blocks * c.slots_per_pair + order % c.max_blocks
        self.table = unit.to(torch.int32).view(1, 1, c.pairs, c.max_blocks)

    def _sparse_state(self, blocks: int) -> None:
        import torch

        c, new = self.config, self._new
        layers, pairs = c.shape.layers, c.pairs
        i32, i64 = torch.int32, torch.int64
        if c.key_format == "fp8":
            size = (layers, pairs, blocks // 16, 4096)
            self.keys = torch.randint(0, 256, size, dtype=torch.uint8, device="cuda")
            self.keys &= _FINITE_E4M3
        else:
            self.keys = self._random(layers, pairs, blocks // 16, 4096)
        self.scores = new(2, pairs, blocks, dtype=torch.float32)
        self.slot_block = torch.arange(c.pool_blocks, dtype=i32, device="cuda").repeat(
            layers, pairs, 1
        )
        self.stamp = new(layers, pairs, c.pool_blocks, dtype=i32)
        self.select_counts = new(layers, pairs, 2, dtype=i32)
        slot = torch.arange(c.chosen_blocks, dtype=i32, device="cuda")
        base = torch.arange(pairs, dtype=i32, device="cuda") * c.slots_per_pair
        identity = base[:, None] + slot[None, :]
        self.table = identity.expand(2, layers, pairs, c.chosen_blocks).contiguous()
        self.table_count = torch.full((2, layers, pairs), c.chosen_blocks, dtype=i32, device="cuda")
        self.shadow_table = new(pairs, c.chosen_blocks, dtype=i32)
        self.shadow_count = new(pairs, dtype=i32)
        room = pairs * max(c.cap_blocks, 1)
        begins = torch.arange(layers, dtype=i64, device="cuda") * room
        self.select_bounds = begins[:, None].repeat(1, 2).contiguous()
        self.select_source = new(layers * room, dtype=i64)
        self.select_target = new(layers * room, dtype=i32)
        self.host = HostPool(c.host_units * (c.unit_bytes // 2))
        self.host.stamp(c.unit_bytes // 2)
        ring = _MIRROR_RING_BYTES // c.unit_bytes
        self.mirror_units = ring if c.stamped else 0
        self.mirror_host = HostPool(ring * (c.unit_bytes // 2)) if c.stamped else self.host

    def _activations(self) -> None:
        c, shape = self.config, self.config.shape
        rows = c.rows
        self.x0 = self._random(rows, shape.hidden)
        self.x = self._random(rows, shape.hidden)
        self.normed = self._random(rows, shape.hidden)
        self.qkv = self._random(rows, shape.qkv_width)
        self.attended = self._random(rows, shape.query_heads * shape.head_dim)
        self.gate_up = self._random(rows, 2 * shape.intermediate)
        self.gated = self._random(rows, shape.intermediate)
        self.logits = self._random(c.batch, shape.vocab)
        self.rope = _rope_table(c.context_capacity + 2, shape.head_dim)


def _rope_table(positions: int, head_dim: int) -> Any:
    """Return cos and sin [positions, head_dim / 2, 2] for base 1e6 (Qwen3 configuration)."""
    import torch

    half = head_dim // 2
    inverse = 1e6 ** (-torch.arange(half, dtype=torch.float64, device="cuda") / half)
    angle = torch.arange(positions, dtype=torch.float64, device="cuda")[:, None] * inverse
    return torch.stack([angle.cos(), angle.sin()], dim=-1).float().contiguous()


class DraftMemory:
    """Hold the draft head's KV (one layer, all positions resident) and its activations."""

    def __init__(self, config: StepConfig) -> None:
        torch = require_gpu()
        shape, batch = config.shape, config.batch
        self.blocks = -(-(config.context_capacity + 2) // 16)
        self.slots_per_pair = self.blocks + LOCAL_SLOTS

        def random(*size: int) -> Any:
            tensor = torch.empty(size, dtype=torch.bfloat16, device="cuda")
            fill_stamps(tensor, 1 << 41, size[-1])
            return tensor

        units = config.pairs * self.slots_per_pair
        if config.draft_kv == "fp8":
            self.pool = torch.randint(0, 256, (units, 4096), dtype=torch.uint8, device="cuda")
            self.pool &= _FINITE_E4M3
        else:
            self.pool = random(units, 4096)
        base = torch.arange(config.pairs, dtype=torch.int32, device="cuda") * self.slots_per_pair
        slot = torch.arange(self.blocks, dtype=torch.int32, device="cuda")
        self.table = (base[:, None] + slot[None, :]).contiguous()
        self.features = random(batch, 3 * shape.hidden)
        self.fused = random(batch, shape.hidden)
        self.joined = random(batch, 2 * shape.hidden)
        self.qkv = random(batch, shape.qkv_width)
        self.attended = random(batch, shape.query_heads * shape.head_dim)
        self.gate_up = random(batch, 2 * shape.intermediate)
        self.gated = random(batch, shape.intermediate)
        self.logits = random(batch, shape.draft_vocab)
