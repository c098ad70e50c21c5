"""What a transfer schedule holds: its arrays, and the sizes that follow from them.

A schedule is a window of S steps of a simulated run. Moves are ordered by step, layer, row,
KV head and admission; `move_offset[s * L + l]` is the first move of layer l in step s. A step has
B columns: first its `rows` sparse ones, then its `dense_rows` dense ones, then padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class ScheduleArrays:
    """Hold the block moves of S steps, B columns, L layers, N moves.

    `meta` has the keys format, version, model, scheme, profile, engine, transport, layers,
    kv_heads, host_blocks (host units per request, layer and head that a move may name) and stages.
    `row_request[s, b]` is -1 in padding. `context_tokens[s, b]` counts the tokens that row b has
    when step s starts, the one being decoded included. Times are simulated picoseconds.
    """

    meta: Mapping[str, Any]
    step: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    dense_rows: npt.NDArray[np.int32]
    row_request: npt.NDArray[np.int64]
    context_tokens: npt.NDArray[np.int32]
    move_offset: npt.NDArray[np.int64]
    move_row: npt.NDArray[np.uint16]
    move_head: npt.NDArray[np.uint8]
    move_block: npt.NDArray[np.uint32]
    move_slot: npt.NDArray[np.uint16]
    sim_step_ps: npt.NDArray[np.int64]
    sim_stage_ps: npt.NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Number of steps S."""
        return len(self.step)

    @property
    def batch(self) -> int:
        """Number of columns B, the largest batch of the window."""
        return int(self.row_request.shape[1])

    @property
    def moves(self) -> int:
        """Number of moves N."""
        return len(self.move_block)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.meta["layers"])

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer, all devices together."""
        return int(self.meta["kv_heads"])

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the columns of `sim_stage_ps`."""
        return tuple(self.meta["stages"])

    @property
    def host_blocks(self) -> int:
        """Host units per request, layer and head that moves may name."""
        return int(self.meta["host_blocks"])

    @property
    def transport(self) -> str:
        """How units are moved: sm_gather, copy_engine or naive."""
        return str(self.meta["transport"])

    def scheme_int(self, key: str) -> int:
        """Return an integer of the resolved scheme, such as pool_blocks."""
        return int(self.meta["scheme"][key])

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit: K and V of one block of one head of one layer."""
        model = self.meta["model"]
        return (
            2
            * int(model["head_dim"])
            * int(model["bytes_per_kv"])
            * self.scheme_int("block_tokens")
        )

    def step_moves(self) -> npt.NDArray[np.int64]:
        """Return the number of moves of each step, int64[S]."""
        return np.diff(self.move_offset[:: self.layers])

    def layer_slice(self, step: int, layer: int) -> slice:
        """Return the range of moves of one layer in one step of the window."""
        at = step * self.layers + layer
        return slice(int(self.move_offset[at]), int(self.move_offset[at + 1]))
