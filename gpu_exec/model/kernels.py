"""The kernels that a model's paged decode calls, on a GPU: one method each, tensors in and out.

``host_kernels`` has the same methods for a machine without a GPU.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from gpu_exec.kernels.abi import (
    AppendArgs,
    AttentionArgs,
    ScanArgs,
    SelectArgs,
    select_scratch_bytes,
)
from gpu_exec.kernels.library import launch, pointer
from gpu_exec.model.choice import Residents
from gpu_exec.model.page import PageShape

_RING_BYTES = 24576
"""Of one warp of the attention: three tiles of 128 dimensions, or two of 256."""
_SCAN_STAGES = 2
_SELECT_THREADS = 256
_GATHER_CTAS = 4
_GATHER_THREADS = 256
_PIECE_BYTES, _SMALL_PIECE_BYTES = 8192, 4096
"""What one warp gathers at a time (csrc/gather.cuh)."""


class PageKernels(Protocol):
    """Append, attend, scan, select and gather over the paged memory of one layer.

    d is the kernels' head dimension (``PageShape.width``).
    """

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that the gathers have moved so far."""
        ...

    def attend(
        self, query: Any, memory: Any, table: Any, counts: Any, position: Any, scaling: float
    ) -> Any:
        """Attend listed units and the local ones of each pair.

        query bfloat16 [J, R, Hq, d]: row j lies at position + j. memory: the units, bfloat16
        [R H slots, elements]. table int32 [R H, n], counts int32 [R H] or None: all full blocks.
        position int32 [R]. Returns bfloat16 [J, R, Hq, d].
        """
        ...

    def append(self, both: Any, memory: Any, tiles: Any, position: Any) -> None:
        """Put each row's token at its position into its local unit.

        both bfloat16 [R, 2 H, d]: keys, then values. With ``tiles`` the extremes of the token's
        block follow; its first token begins them anew.
        """
        ...

    def scan(self, query: Any, tiles: Any, scores: Any, position: Any) -> None:
        """Write the bounds of the blocks that are complete before position + 1.

        query bfloat16 [R, Hq, d]; tiles bfloat16 [R H, tiles, 32 d]; scores float32
        [R, H, blocks].
        """
        ...

    def select(self, row: Residents, scores: Any, position: Any, step: Any, cap: int) -> None:
        """Move one row's pools towards the best blocks for position + 1; list moves and units."""
        ...

    def gather(self, row: Residents, host: Any, memory: Any) -> None:
        """Copy a row's moves from host units to its own."""
        ...


class CudaKernels:
    """Call the compiled kernels."""

    def __init__(self, shape: PageShape, device: Any) -> None:
        """Allocate what the kernels need beside their data."""
        import torch

        self._shape = shape
        self._tickets = torch.zeros(shape.pairs, dtype=torch.int32, device=device)
        self._partial = torch.zeros(1, dtype=torch.float32, device=device)
        self._moved = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that the gathers have moved so far, counted on the device."""
        piece = _PIECE_BYTES if self._shape.unit_bytes % _PIECE_BYTES == 0 else _SMALL_PIECE_BYTES
        return int(self._moved.item()) * piece

    def attend(
        self, query: Any, memory: Any, table: Any, counts: Any, position: Any, scaling: float
    ) -> Any:
        """See PageKernels."""
        import torch

        shape = self._shape
        rows, width = query.shape[0], shape.heads * shape.group * shape.width
        out = torch.empty_like(query)
        arguments = AttentionArgs(
            q=query.data_ptr(),
            out=out.data_ptr(),
            pool=memory.data_ptr(),
            table=table.data_ptr(),
            counts=None if counts is None else counts.data_ptr(),
            position=position.data_ptr(),
            partial=self._partial.data_ptr(),
            tickets=self._tickets.data_ptr(),
            table_stride=table.shape[1],
            fixed_count=-1,
            q_stride=width,
            out_stride=width,
            batch=shape.rows,
            heads=shape.heads,
            group=shape.group,
            rows_per_request=rows,
            block_tokens=shape.block_tokens,
            slots_per_pair=shape.slots_per_pair,
            local_slot=shape.slots,
            splits=1,
            stages=_RING_BYTES // (64 * shape.width) or 1,
            scale_log2=scaling * math.log2(math.e),
            value_scale=1.0,
            head_dim=shape.width,
        )
        launch("oasis_attention", arguments, shape.pairs, 0, 0)
        return out

    def append(self, both: Any, memory: Any, tiles: Any, position: Any) -> None:
        """See PageKernels."""
        shape = self._shape
        arguments = AppendArgs(
            qkv=both.data_ptr(),
            q_norm=None,
            k_norm=None,
            rope=None,
            pool=memory.data_ptr(),
            keys=None if tiles is None else tiles.data_ptr(),
            position=position.data_ptr(),
            batch=shape.rows,
            rows=shape.rows,
            query_heads=0,
            heads=shape.heads,
            width=2 * shape.heads * shape.width,
            block_tokens=shape.block_tokens,
            slots_per_pair=shape.slots_per_pair,
            local_slot=shape.slots,
            tiles_per_pair=shape.key_tiles,
            fp8=0,
            eps=0.0,
            head_dim=shape.width,
        )
        launch("oasis_append", arguments, 0)

    def scan(self, query: Any, tiles: Any, scores: Any, position: Any) -> None:
        """See PageKernels."""
        shape = self._shape
        arguments = ScanArgs(
            q=query.data_ptr(),
            keys=tiles.data_ptr(),
            scores=scores.data_ptr(),
            position=position.data_ptr(),
            step=None,
            tickets=self._tickets.data_ptr(),
            score_stride=shape.score_stride,
            q_stride=shape.heads * shape.group * shape.width,
            heads=shape.heads,
            group=shape.group,
            tiles_per_pair=shape.key_tiles,
            block_tokens=shape.block_tokens,
            recent_blocks=1,
            splits=1,
            stages=_SCAN_STAGES,
            select=0,
            max_blocks=shape.score_stride,
            head_dim=shape.width,
        )
        launch("oasis_scan", arguments, SelectArgs(), shape.pairs, 0, 0, 0)

    def select(self, row: Residents, scores: Any, position: Any, step: Any, cap: int) -> None:
        """See PageKernels."""
        row.bounds.zero_()
        stride = self._shape.score_stride
        launch(
            "oasis_select",
            row.select_arguments(scores, cap),
            pointer(position),
            pointer(step),
            self._shape.heads,
            stride,
            select_scratch_bytes(stride, row.rule.pool_blocks, row.rule.chosen_blocks),
            _SELECT_THREADS,
            None,
        )

    def gather(self, row: Residents, host: Any, memory: Any) -> None:
        """See PageKernels."""
        row.cursor.zero_()
        arguments = row.gather_arguments(host, memory, self._moved)
        launch("oasis_gather", arguments, _GATHER_CTAS, _GATHER_THREADS, 0, 0)
