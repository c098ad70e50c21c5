"""Fill the kernels' argument structures from a step's memory; one set per layer and parity."""

from __future__ import annotations

import math
from typing import Any

from gpu_exec.kernels.abi import (
    AppendArgs,
    AttentionArgs,
    BeginArgs,
    GatherArgs,
    MirrorArgs,
    ScanArgs,
    SelectArgs,
)
from gpu_exec.kernels.config import TILE_TOKENS, StepConfig
from gpu_exec.kernels.memory import DraftMemory, StepMemory
from gpu_exec.kernels.splits import SCAN_SLOTS, choose_attention, choose_splits

SCAN_STAGES = {"bf16": 2, "fp8": 3}


def _address(tensor: Any, *index: int) -> int:
    return int((tensor[index] if index else tensor).data_ptr())


class StepArguments:
    """Build argument structures that point into ``memory``."""

    def __init__(self, config: StepConfig, memory: StepMemory) -> None:
        self.config, self.memory = config, memory
        per_unit = config.block_tokens // TILE_TOKENS
        blocks = config.max_blocks if config.dense else config.chosen_blocks + 1
        self.attention_splits, self.attention_stages = choose_attention(
            config.pairs, blocks * per_unit
        )
        tiles = max(1, config.max_blocks // 16)
        least = 2 if tiles >= 32 and config.key_format == "bf16" else 1
        self.scan_splits = max(least, choose_splits(config.pairs, tiles, SCAN_SLOTS))

    def begin(self, positions: Any) -> BeginArgs:
        """Arguments of the opening kernel; ``positions`` int32 [steps, batch] on the device."""
        m, c = self.memory, self.config
        return BeginArgs(
            step=_address(m.step),
            phase=_address(m.phase),
            position=_address(m.position),
            positions=_address(positions),
            cursor=_address(m.cursor),
            stop=_address(m.stop),
            ready=_address(m.ready),
            select_bounds=None if c.dense else _address(m.select_bounds),
            steps=positions.shape[0],
            batch=c.batch,
            layers=c.shape.layers,
        )

    def append(self, layer: int, head_norm: Any) -> AppendArgs:
        """Arguments of norm, rotation, append and min/max of one layer."""
        m, c = self.memory, self.config
        return AppendArgs(
            qkv=_address(m.qkv),
            q_norm=_address(head_norm, 0),
            k_norm=_address(head_norm, 1),
            rope=_address(m.rope),
            pool=_address(m.pool, layer),
            keys=None if c.dense else _address(m.keys, layer),
            position=_address(m.position),
            batch=c.batch,
            rows=c.rows,
            query_heads=c.shape.query_heads,
            heads=c.shape.kv_heads,
            width=c.shape.qkv_width,
            block_tokens=c.block_tokens,
            slots_per_pair=c.slots_per_pair,
            local_slot=c.slots_per_pair - 2,
            tiles_per_pair=m.key_tiles,
            fp8=int(c.key_format == "fp8"),
            eps=1e-6,
            head_dim=c.shape.head_dim,
        )

    def attention(self, layer: int, parity: int) -> AttentionArgs:
        """Arguments of one layer's attention, reading the slot list of ``parity``."""
        m, c = self.memory, self.config
        table = m.table[0, 0] if c.dense else m.table[parity, layer]
        counted = not c.dense and c.moves_from == "selection"
        fixed = -1 if c.dense else c.chosen_blocks
        return AttentionArgs(
            q=_address(m.qkv),
            out=_address(m.attended),
            pool=_address(m.pool, layer),
            table=_address(table),
            counts=_address(m.table_count, parity, layer) if counted else None,
            position=_address(m.position),
            partial=_address(m.partial),
            tickets=_address(m.tickets),
            table_stride=table.shape[-1],
            fixed_count=fixed,
            q_stride=c.shape.qkv_width,
            out_stride=c.shape.query_heads * c.shape.head_dim,
            batch=c.batch,
            heads=c.shape.kv_heads,
            group=c.shape.group,
            rows_per_request=c.rows_per_request,
            block_tokens=c.block_tokens,
            slots_per_pair=c.slots_per_pair,
            local_slot=c.slots_per_pair - 2,
            splits=self.attention_splits,
            stages=self.attention_stages,
            scale_log2=c.shape.head_dim**-0.5 * math.log2(math.e),
            value_scale=1.0,
            head_dim=c.shape.head_dim,
        )

    def draft_attention(self, draft: DraftMemory) -> AttentionArgs:
        """Arguments of the draft head's attention over all its positions."""
        m, c = self.memory, self.config
        args = self.attention(0, 0)
        args.q, args.out = _address(draft.qkv), _address(draft.attended)
        args.pool, args.table = _address(draft.pool), _address(draft.table)
        args.counts, args.fixed_count = None, -1
        args.position, args.table_stride = _address(m.position), draft.blocks
        args.rows_per_request, args.block_tokens = 1, 16
        args.slots_per_pair, args.local_slot = draft.slots_per_pair, draft.blocks
        args.splits, args.stages = choose_attention(c.pairs, draft.blocks)
        if c.draft_kv == "fp8":  # half the bytes per stage: twice the stages
            args.stages *= 2
        return args

    def scan(self, layer: int, fused: bool) -> ScanArgs:
        """Arguments of one layer's key scan by the draft row (the only row without one)."""
        m, c = self.memory, self.config
        draft_row = (c.rows_per_request - 1) * c.batch
        return ScanArgs(
            q=_address(m.qkv, draft_row),
            keys=_address(m.keys, layer),
            scores=_address(m.scores, layer % 2),
            position=_address(m.position),
            step=_address(m.step),
            tickets=_address(m.scan_tickets),
            score_stride=c.max_blocks,
            q_stride=c.shape.qkv_width,
            heads=c.shape.kv_heads,
            group=c.shape.group,
            tiles_per_pair=m.key_tiles,
            block_tokens=c.block_tokens,
            recent_blocks=1,
            splits=self.scan_splits,
            stages=SCAN_STAGES[c.key_format],
            select=int(fused),
            max_blocks=c.max_blocks,
            head_dim=c.shape.head_dim,
        )

    def select(self, layer: int, parity: int) -> SelectArgs:
        """Arguments of one layer's selection; it writes the slot list of the other parity."""
        m, c = self.memory, self.config
        shadow = c.moves_from == "schedule"  # decide for real, but leave the slot lists alone
        table = m.shadow_table if shadow else m.table[1 - parity, layer]
        count = m.shadow_count if shadow else m.table_count[1 - parity, layer]
        heads, blocks = c.shape.kv_heads, c.max_blocks
        return SelectArgs(
            scores=_address(m.scores, layer % 2),
            slot_block=_address(m.slot_block, layer),
            stamp=_address(m.stamp, layer),
            attend_unit=_address(table),
            attend_count=_address(count),
            counts=_address(m.select_counts, layer),
            move_end=_address(m.select_bounds, layer, 1),
            move_source=_address(m.select_source),
            move_target=_address(m.select_target),
            score_stride=blocks,
            attend_stride=c.chosen_blocks,
            logical_base=layer * heads * blocks,
            pair_stride=blocks,
            request_stride=c.shape.layers * heads * blocks,
            host_units=c.host_units,
            move_begin=layer * c.pairs * max(c.cap_blocks, 1),
            heads=heads,
            pool=c.pool_blocks,
            chosen=c.chosen_blocks,
            cap=c.cap_blocks,
            slots_per_pair=c.slots_per_pair,
            first_block=0,
            recent_blocks=1,
            block_tokens=c.block_tokens,
            aliased=int(c.host_aliased),
        )

    def gather(
        self,
        moves: Any,
        layers: tuple[int, int],
        stop_at: int | None = None,
        waiting: bool = False,
    ) -> GatherArgs:
        """Arguments of a gather of the lists of ``layers`` [first, last).

        With ``stop_at`` it leaves as soon as the stop flag reaches that value; ``waiting`` holds
        each layer back until the ready flag has passed it.
        """
        m, c = self.memory, self.config
        schedule = c.moves_from == "schedule"
        return GatherArgs(
            host=m.host.alias,
            pool=_address(m.pool),
            bounds=_address(moves.bounds if schedule else m.select_bounds),
            source=_address(moves.source if schedule else m.select_source),
            target=_address(moves.target if schedule else m.select_target),
            phase=_address(m.phase) if schedule else None,
            cursor=_address(m.cursor),
            stop=None if stop_at is None else _address(m.stop),
            ready=_address(m.ready) if waiting else None,
            moved=_address(m.moved),
            layer_bytes=m.pool.stride(0) * 2,
            unit_bytes=c.unit_bytes,
            layers=c.shape.layers,
            layer_begin=layers[0],
            layer_end=layers[1],
            stop_at=stop_at or 0,
        )

    def mirror(self, layer: int) -> MirrorArgs:
        """Arguments of one layer's copy of completed blocks to the host."""
        m, c = self.memory, self.config
        heads, blocks = c.shape.kv_heads, c.max_blocks
        return MirrorArgs(
            pool=_address(m.pool, layer),
            host=m.mirror_host.alias,
            position=_address(m.position),
            mirrored=_address(m.mirrored),
            logical_base=layer * heads * blocks,
            request_stride=c.shape.layers * heads * blocks,
            pair_stride=blocks,
            host_units=c.host_units,
            ring_units=m.mirror_units,
            pairs=c.pairs,
            heads=heads,
            unit_bytes=c.unit_bytes,
            block_tokens=c.block_tokens,
            slots_per_pair=c.slots_per_pair,
            local_slot=c.slots_per_pair - 2,
            aliased=int(c.host_aliased),
        )
