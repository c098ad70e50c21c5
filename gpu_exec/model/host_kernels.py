"""The kernels' work on a machine without a GPU: the same memory layout, rounding and decisions.

Selection is the kernel's own text compiled for the CPU. Attention and scan are written anew: with
products of bfloat16 summed in float32, probabilities and outputs rounded as the kernels round them.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.model.choice import Residents
from gpu_exec.model.page import KEY_TILE_BLOCKS, LOCAL_SLOTS, PageShape
from oasis_sim.errors import RunFailed


class HostKernels:
    """Do what ``CudaKernels`` do, on CPU tensors."""

    def __init__(self, shape: PageShape, device: Any = None) -> None:
        """Prepare the places of elements."""
        import torch

        del device
        self._shape = shape
        self._places = torch.from_numpy(shape.token_places)
        self._bounds = torch.from_numpy(shape.bound_places)
        self._moved_bytes = 0

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that the gathers have moved so far."""
        return self._moved_bytes

    def attend(
        self, query: Any, memory: Any, table: Any, counts: Any, position: Any, scaling: float
    ) -> Any:
        """See PageKernels."""
        import torch

        shape, out = self._shape, torch.empty_like(query)
        for pair in range(shape.pairs):
            row, head = divmod(pair, shape.heads)
            at = int(position[row])
            count = at // shape.block_tokens if counts is None else int(counts[pair])
            key, value, places = self._unpacked(memory, pair, table[pair, :count].long(), at)
            heads = slice(head * shape.group, (head + 1) * shape.group)
            for ahead in range(query.shape[0]):
                scores = query[ahead, row, heads].float() @ key.T * scaling
                scores = scores.masked_fill(places > at + ahead, -torch.inf)
                weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
                summed = weights.bfloat16().float() @ value
                out[ahead, row, heads] = (summed / weights.sum(dim=-1, keepdim=True)).bfloat16()
        return out

    def _unpacked(self, memory: Any, pair: int, units: Any, position: int) -> tuple[Any, Any, Any]:
        """Return keys and values, float32 [n, d], of units and the local ones, and positions.

        Tokens of listed units count as position 0: all rows see them.
        """
        import torch

        shape, size = self._shape, self._shape.block_tokens
        active = position // size
        first = pair * shape.slots_per_pair + shape.slots
        local = torch.tensor([first + (active + ahead) % LOCAL_SLOTS for ahead in range(2)])
        both = memory[torch.cat([units, local])][:, self._places].float()
        start = torch.arange(active * size, (active + 2) * size)
        places = torch.cat([torch.zeros(len(units) * size, dtype=torch.int64), start])
        flat = both.flatten(0, 1)
        return flat[:, 0], flat[:, 1], places

    def append(self, both: Any, memory: Any, tiles: Any, position: Any) -> None:
        """See PageKernels."""
        import torch

        shape, size = self._shape, self._shape.block_tokens
        for pair in range(shape.pairs):
            row, head = divmod(pair, shape.heads)
            block, token = divmod(int(position[row]), size)
            unit = pair * shape.slots_per_pair + shape.slots + block % LOCAL_SLOTS
            key, value = both[row, head], both[row, shape.heads + head]
            memory[unit, self._places[token]] = torch.stack([key, value])
            if tiles is None:
                continue
            tile = tiles[pair, block // KEY_TILE_BLOCKS]
            high, low = self._bounds[block % KEY_TILE_BLOCKS].chunk(2)
            tile[high] = key if token == 0 else torch.maximum(tile[high], key)
            tile[low] = key if token == 0 else torch.minimum(tile[low], key)

    def scan(self, query: Any, tiles: Any, scores: Any, position: Any) -> None:
        """See PageKernels."""
        shape = self._shape
        bounds = tiles[:, :, self._bounds].float().flatten(1, 2)
        high, low = bounds.chunk(2, dim=-1)
        grouped = query.float().reshape(shape.pairs, shape.group, -1)
        found = grouped.clamp(min=0.0) @ high.mT + grouped.clamp(max=0.0) @ low.mT
        best = found.amax(dim=1).view(scores.shape)
        for row in range(shape.rows):
            blocks = (int(position[row]) + 1) // shape.block_tokens
            scores[row, :, :blocks] = best[row, :, :blocks]

    def select(self, row: Residents, scores: Any, position: Any, step: Any, cap: int) -> None:
        """See PageKernels."""
        row.bounds.zero_()
        _selection().oasis_select_cpu(
            ctypes.byref(row.select_arguments(scores, cap)),
            ctypes.c_void_p(position.data_ptr()),
            int(step[0]),
            self._shape.heads,
            self._shape.score_stride,
        )

    def gather(self, row: Residents, host: Any, memory: Any) -> None:
        """See PageKernels."""
        moves = int(row.bounds[1])
        memory[row.target[:moves].long()] = host[row.source[:moves]]
        self._moved_bytes += moves * self._shape.unit_bytes


@lru_cache(maxsize=1)
def _selection() -> ctypes.CDLL:
    path = build_selection_for_cpu()
    if path is None:
        raise RunFailed("no C++ compiler to build the selection core")
    return ctypes.CDLL(str(path))
