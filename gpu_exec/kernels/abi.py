"""Mirror the argument structures of the C entry points; field order is that of csrc/*.cuh."""

from __future__ import annotations

import ctypes as c
from typing import Any, ClassVar

_P, _I, _L, _F = c.c_void_p, c.c_int, c.c_longlong, c.c_float


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class AttentionArgs(c.Structure):
    """Arguments of the paged attention kernel."""

    _fields_: ClassVar = [
        *_fields(_P, "q out pool table counts position partial tickets"),
        *_fields(_L, "table_stride"),
        *_fields(_I, "fixed_count q_stride out_stride batch heads group rows_per_request"),
        *_fields(_I, "block_tokens slots_per_pair local_slot splits stages"),
        *_fields(_F, "scale_log2 value_scale"),
        *_fields(_I, "head_dim"),
    ]


class ScanArgs(c.Structure):
    """Arguments of the key scan."""

    _fields_: ClassVar = [
        *_fields(_P, "q keys scores position step tickets"),
        *_fields(_L, "score_stride"),
        *_fields(_I, "q_stride heads group tiles_per_pair block_tokens recent_blocks"),
        *_fields(_I, "splits stages select max_blocks head_dim"),
    ]


class SelectArgs(c.Structure):
    """Arguments of selection, alone, inside the scan, or on the CPU."""

    _fields_: ClassVar = [
        *_fields(_P, "scores slot_block stamp attend_unit attend_count counts"),
        *_fields(_P, "move_end move_source move_target"),
        *_fields(_L, "score_stride attend_stride logical_base pair_stride request_stride"),
        *_fields(_L, "host_units move_begin"),
        *_fields(_I, "heads pool chosen cap slots_per_pair first_block recent_blocks"),
        *_fields(_I, "block_tokens aliased"),
    ]


class GatherArgs(c.Structure):
    """Arguments of the gathers, the scatter and the stamp check."""

    _fields_: ClassVar = [
        *_fields(_P, "host pool bounds source target phase cursor stop ready moved"),
        *_fields(_L, "layer_bytes"),
        *_fields(_I, "unit_bytes layers layer_begin layer_end stop_at"),
    ]


class CopyArgs(c.Structure):
    """Arguments of the copies that the host submits."""

    _fields_: ClassVar = [
        *_fields(_P, "pool host offset target source released events"),
        *_fields(_L, "layer_bytes unit_bytes"),
        *_fields(_I, "layer_begin layer_end"),
    ]


class MirrorArgs(c.Structure):
    """Arguments of the copy of completed blocks to the host."""

    _fields_: ClassVar = [
        *_fields(_P, "pool host position mirrored"),
        *_fields(_L, "logical_base request_stride pair_stride host_units"),
        *_fields(_I, "ring_units pairs heads unit_bytes block_tokens slots_per_pair"),
        *_fields(_I, "local_slot aliased"),
    ]


class BeginArgs(c.Structure):
    """Arguments of the kernel that opens a step."""

    _fields_: ClassVar = [
        *_fields(_P, "step phase position positions cursor stop ready select_bounds"),
        *_fields(_I, "steps batch layers"),
    ]


class AppendArgs(c.Structure):
    """Arguments of norm, rotation, KV append and min/max update."""

    _fields_: ClassVar = [
        *_fields(_P, "qkv q_norm k_norm rope pool keys position"),
        *_fields(_I, "batch rows query_heads heads width"),
        *_fields(_I, "block_tokens slots_per_pair local_slot tiles_per_pair fp8"),
        *_fields(_F, "eps"),
        *_fields(_I, "head_dim"),
    ]


def select_scratch_bytes(max_blocks: int, pool: int, chosen: int) -> int:
    """Return the shared memory that selection needs (twin of carve_scratch)."""
    words = (max_blocks + 63) // 32
    total = 1024 + max_blocks + 3 * words + (pool + 31) // 32 + 6 * pool + 3 * chosen + 8
    return 4 * total
