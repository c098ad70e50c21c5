"""Drive the selection core compiled for the CPU, with the structures that the GPU gets."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from gpu_exec.build import build_selection_for_cpu
from gpu_exec.kernels.abi import SelectArgs


@dataclass(frozen=True)
class SelectCase:
    """Sizes of one selection: pairs = heads * batch."""

    batch: int
    heads: int
    pool: int
    chosen: int
    cap: int
    max_blocks: int
    block_tokens: int = 16

    @property
    def pairs(self) -> int:
        """(request, head) pairs."""
        return self.batch * self.heads


class SelectBuffers:
    """Hold the arrays of one selection; all pairs start with ``slot_block`` as given."""

    def __init__(self, case: SelectCase, slot_block: np.ndarray) -> None:
        pairs, self.case = case.pairs, case
        self.scores = np.zeros((pairs, case.max_blocks), dtype=np.float32)
        self.slot_block = np.ascontiguousarray(slot_block, dtype=np.int32)
        self.stamp = np.zeros((pairs, case.pool), dtype=np.int32)
        self.attend_unit = np.full((pairs, case.chosen), -7, dtype=np.int32)
        self.attend_count = np.full(pairs, -7, dtype=np.int32)
        self.counts = np.full((pairs, 2), -7, dtype=np.int32)
        self.bounds = np.zeros(2, dtype=np.int64)
        room = pairs * max(case.cap, 1)
        self.source = np.full(room, -7, dtype=np.int64)
        self.target = np.full(room, -7, dtype=np.int32)

    def arguments(self, address=lambda a: a.ctypes.data) -> SelectArgs:
        """Return the argument structure; ``address`` maps an array to its pointer."""
        case = self.case
        return SelectArgs(
            scores=address(self.scores),
            slot_block=address(self.slot_block),
            stamp=address(self.stamp),
            attend_unit=address(self.attend_unit),
            attend_count=address(self.attend_count),
            counts=address(self.counts),
            move_end=address(self.bounds) + 8,
            move_source=address(self.source),
            move_target=address(self.target),
            score_stride=case.max_blocks,
            attend_stride=case.chosen,
            logical_base=0,
            pair_stride=case.max_blocks,
            request_stride=case.heads * case.max_blocks,
            host_units=1 << 40,
            move_begin=0,
            heads=case.heads,
            pool=case.pool,
            chosen=case.chosen,
            cap=case.cap,
            slots_per_pair=case.pool + 2,
            first_block=0,
            recent_blocks=1,
            block_tokens=case.block_tokens,
            aliased=0,
        )

    def run_on_cpu(self, position: np.ndarray, step: int) -> None:
        """Run one selection at ``step`` with the core compiled for the CPU."""
        path = build_selection_for_cpu()
        assert path is not None
        self.bounds[1] = self.bounds[0]
        position = np.ascontiguousarray(position, dtype=np.int32)
        ctypes.CDLL(str(path)).oasis_select_cpu(
            ctypes.byref(self.arguments()),
            ctypes.c_void_p(position.ctypes.data),
            step - 1,
            self.case.pairs,
            self.case.max_blocks,
        )

    def moves(self) -> set[tuple[int, int, int]]:
        """Return the published moves as (pair, block, slot)."""
        case, found = self.case, set()
        for at in range(int(self.bounds[0]), int(self.bounds[1])):
            pair, slot = divmod(int(self.target[at]), case.pool + 2)
            home, block = divmod(int(self.source[at]), case.max_blocks)
            assert home == pair
            found.add((pair, block, slot))
        return found
