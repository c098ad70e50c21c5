"""From a schedule to addresses: which host unit goes to which device slot, step by step.

A device's host unit is numbered request-major: ((request * layers + layer) * heads + head) *
host_blocks + block, over the requests of the window and the device's own heads. Where its host
pool has fewer units than that, several share one, chosen by a hash of the number (aliasing): the
bytes moved and their scatter stay true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_exec.stamps import mix64
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import UsageError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HostPlacement:
    """Map modelled host units to the `units` that exist."""

    modelled_units: int
    units: int

    @property
    def aliased(self) -> bool:
        """Say whether several modelled units share one."""
        return self.units < self.modelled_units

    def place(self, modelled: Int64) -> Int64:
        """Return the existing unit of each modelled one."""
        if not self.aliased:
            return modelled
        return (mix64(modelled.astype(np.uint64)) % np.uint64(self.units)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class StepMoves:
    """Hold the moves of one step for one device, ordered by layer, row, head and admission.

    `head` counts from the device's first head; `layer_offset` int64[L + 1] bounds each layer.
    """

    layer_offset: Int64
    layer: Int64
    row: Int64
    head: Int64
    slot: Int64
    host_unit: Int64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class MovePlan:
    """Resolve the moves of a schedule for the heads of one device.

    Device slots are numbered ((row * layers + layer) * heads + head) * pool_blocks + slot with
    the device's own heads, in int64: real pools pass 2**31 elements.
    """

    schedule: Schedule
    first_head: int
    heads: int
    placement: HostPlacement
    request_index: Int64

    @property
    def slots(self) -> int:
        """Number of device slots."""
        pool = self.schedule.scheme_int("pool_blocks")
        return self.schedule.batch * self.schedule.layers * self.heads * pool

    def step(self, index: int) -> StepMoves:
        """Return the moves of step `index` of the window."""
        s = self.schedule
        first, last = index * s.layers, (index + 1) * s.layers
        bounds = s.move_offset[first : last + 1]
        part = slice(int(bounds[0]), int(bounds[-1]))
        layer = np.repeat(np.arange(s.layers), np.diff(bounds))
        head = s.move_head[part].astype(np.int64) - self.first_head
        mine = (head >= 0) & (head < self.heads)
        layer, head = layer[mine], head[mine]
        row = s.move_row[part][mine].astype(np.int64)
        request = self.request_index[index, row]
        modelled = ((request * s.layers + layer) * self.heads + head) * s.host_blocks
        modelled += s.move_block[part][mine].astype(np.int64)
        return StepMoves(
            layer_offset=np.searchsorted(layer, np.arange(s.layers + 1)),
            layer=layer,
            row=row,
            head=head,
            slot=s.move_slot[part][mine].astype(np.int64),
            host_unit=self.placement.place(modelled),
        )

    def slot_address(self, moves: StepMoves) -> Int64:
        """Return the device slot of each move."""
        s = self.schedule
        pool = s.scheme_int("pool_blocks")
        return ((moves.row * s.layers + moves.layer) * self.heads + moves.head) * pool + moves.slot


def head_shards(heads: int, devices: int) -> tuple[tuple[int, int], ...]:
    """Split KV heads over devices: (first, count) each, sizes differing by one at most."""
    if not 1 <= devices <= heads:
        raise UsageError(f"{heads} KV heads can be split over 1 to {heads} devices, not {devices}")
    base, more = divmod(heads, devices)
    counts = [base + (d < more) for d in range(devices)]
    return tuple((sum(counts[:d]), count) for d, count in enumerate(counts))


def plan_moves(schedule: Schedule, host_units: int | None, shard: tuple[int, int]) -> MovePlan:
    """Return the plan of one device; `host_units` limits the units its host pool has."""
    requests, index = np.unique(schedule.row_request, return_inverse=True)
    index = index.reshape(schedule.row_request.shape).astype(np.int64) - int(requests[0] < 0)
    first, heads = shard
    count = max(1, int(index.max()) + 1)
    modelled = count * schedule.layers * heads * schedule.host_blocks
    units = modelled if host_units is None else min(modelled, host_units)
    if units < 1:
        raise UsageError("the host pool has no room for a single unit")
    return MovePlan(schedule, first, heads, HostPlacement(modelled, units), index)
