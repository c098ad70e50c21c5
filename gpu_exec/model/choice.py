"""What one row's selection in one layer reads and writes, as the kernels take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_exec.kernels.abi import GatherArgs, SelectArgs
from gpu_exec.model.page import PageShape
from oasis_sim.residency.rule import ResidencyRule


@dataclass(frozen=True, eq=False)
class Residents:
    """Hold the pools of one row in one layer, and what its last selection decided.

    Tensors of the device, int32 unless stated: ``slot_block`` and ``stamp`` [H, P] with the
    rule's own P, ``table`` [H, k] and ``count`` [H] the units to attend (counted from the row's
    first), ``counts`` [H, 2] needed and admitted, ``bounds`` int64 [2], ``source`` int64 and
    ``target`` [H max(C, 1)] the moves, ``cursor`` [1].
    """

    rule: ResidencyRule
    shape: PageShape
    home: int  # host unit of the row's first block in its first head
    slot_block: Any
    stamp: Any
    table: Any
    count: Any
    counts: Any
    bounds: Any
    source: Any
    target: Any
    cursor: Any

    def select_arguments(self, scores: Any, cap: int) -> SelectArgs:
        """Arguments of a selection by scores, float32 [H, blocks] of the row."""
        rule, shape = self.rule, self.shape
        return SelectArgs(
            scores=scores.data_ptr(),
            slot_block=self.slot_block.data_ptr(),
            stamp=self.stamp.data_ptr(),
            attend_unit=self.table.data_ptr(),
            attend_count=self.count.data_ptr(),
            counts=self.counts.data_ptr(),
            move_end=self.bounds.data_ptr() + 8,
            move_source=self.source.data_ptr(),
            move_target=self.target.data_ptr(),
            score_stride=shape.score_stride,
            attend_stride=self.table.shape[1],
            logical_base=self.home,
            pair_stride=shape.blocks,
            request_stride=0,
            host_units=0,
            move_begin=0,
            heads=shape.heads,
            pool=rule.pool_blocks,
            chosen=rule.chosen_blocks,
            cap=cap,
            slots_per_pair=shape.slots_per_pair,
            first_block=rule.sink_blocks,
            recent_blocks=rule.recent_blocks,
            block_tokens=rule.block_tokens,
            aliased=0,
        )

    def gather_arguments(self, host: Any, pool: Any, moved: Any) -> GatherArgs:
        """Arguments of the gather of the moves: from all host units to the row's units."""
        return GatherArgs(
            host=host.data_ptr(),
            pool=pool.data_ptr(),
            bounds=self.bounds.data_ptr(),
            source=self.source.data_ptr(),
            target=self.target.data_ptr(),
            phase=None,
            cursor=self.cursor.data_ptr(),
            stop=None,
            ready=None,
            moved=moved.data_ptr(),
            layer_bytes=0,
            unit_bytes=self.shape.unit_bytes,
            layers=1,
            layer_begin=0,
            layer_end=1,
            stop_at=0,
        )


@dataclass(frozen=True, eq=False)
class ResidentGroup:
    """Hold the pools of the rows of equal sizes side by side; ``rows`` int64 [G].

    ``slot_block`` [G, H, P], ``table`` [G, H, k], ``count`` [G, H], ``counts`` [G, H, 2].
    """

    rows: Any
    slot_block: Any
    table: Any
    count: Any
    counts: Any


def new_residents(
    rules: Sequence[ResidencyRule], shape: PageShape, device: Any
) -> tuple[list[Residents], list[ResidentGroup]]:
    """Return empty pools of every row, and the same by group.

    The first selection may admit the whole choice.
    """
    import torch

    def numbers(*size: int, fill: int = 0, kind: Any = torch.int32) -> Any:
        return torch.full(size, fill, dtype=kind, device=device)

    heads = shape.heads
    by_size: dict[tuple[int, int], list[int]] = {}
    for row, rule in enumerate(rules):
        by_size.setdefault((rule.pool_blocks, rule.chosen_blocks), []).append(row)
    groups, residents = [], dict[int, Residents]()
    for (pool, chosen), rows in by_size.items():
        group = ResidentGroup(
            rows=torch.tensor(rows, device=device),
            slot_block=numbers(len(rows), heads, pool, fill=-1),
            table=numbers(len(rows), heads, chosen),
            count=numbers(len(rows), heads),
            counts=numbers(len(rows), heads, 2),
        )
        groups.append(group)
        for place, row in enumerate(rows):
            residents[row] = Residents(
                rule=rules[row],
                shape=shape,
                home=row * heads * shape.blocks,
                slot_block=group.slot_block[place],
                stamp=numbers(heads, pool),
                table=group.table[place],
                count=group.count[place],
                counts=group.counts[place],
                bounds=numbers(2, kind=torch.int64),
                source=numbers(heads * chosen, kind=torch.int64),
                target=numbers(heads * chosen),
                cursor=numbers(1),
            )
    return [residents[row] for row in range(len(rules))], groups
