"""The reference executor: the schedule's moves as NumPy copies between two real pools.

It moves real bytes and checks every stamp, so the logic of a replay is tested without a GPU. Its
times are those of a CPU and are never compared with the simulated GPU. Large pools are scaled
down by storing fewer bytes of each unit (never below its address), and by host aliasing.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_exec.executor import DeviceInfo, PoolInfo, StageTimes, StepRun
from gpu_exec.moves import Int64, MovePlan, StepMoves, head_shards, plan_moves
from gpu_exec.stamps import MIN_UNIT_BYTES, POISON, address_of, stamp, wrong_units
from gpu_exec.sums import PER_LAYER, Floats, contribution, expected_sum, ring_all_reduce
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import UsageError

DEFAULT_BUDGET_BYTES = 128 << 20
SUM_ELEMENTS = 4096
"""Elements that an all-reduce of the reference sums, however wide the model is."""
_CHECK_CHUNK_BYTES = 32 << 20

Pool = npt.NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class _Shard:
    """Hold the pools of one (imagined) device and what each slot must contain (-1: untouched)."""

    plan: MovePlan
    host: Pool
    device: Pool
    expected: Int64


class CpuExecutor:
    """Execute a schedule with NumPy, its heads split over `devices` pools in turn."""

    def __init__(
        self,
        schedule: Schedule,
        devices: int = 1,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        host_bytes: int | None = None,
        all_reduce: bool = True,
    ) -> None:
        """Make the pools: `budget_bytes` for all of them, `host_bytes` per host pool at most."""
        shards = head_shards(schedule.kv_heads, devices)
        share = _Budget(budget_bytes // devices, host_bytes)
        self._shards = tuple(_make_shard(schedule, shard, share) for shard in shards)
        self._unit_bytes = schedule.unit_bytes
        self.all_reduces = PER_LAYER * schedule.layers if all_reduce and devices > 1 else 0
        self.info = DeviceInfo(
            kind="cpu",
            title=f"CPU reference ({platform.machine()})",
            driver="none",
            devices=devices,
            timing="cpu reference",
        )
        self.notes: tuple[str, ...] = ()
        self.pools = tuple(_pool_info(shard, schedule.unit_bytes) for shard in self._shards)

    def run_step(self, index: int) -> StepRun:
        """Copy the step's units layer by layer, then check the stamp of every slot written."""
        units = wrong = 0
        seconds = 0.0
        first: str | None = None
        for shard in self._shards:
            moves = shard.plan.step(index)
            slots = shard.plan.slot_address(moves)
            start = time.perf_counter()
            units += self._copy(shard, moves, slots)
            seconds += time.perf_counter() - start
            shard.expected[slots] = moves.host_unit
            count, text = _check_slots(shard, np.unique(slots))
            wrong += count
            first = first or text
        sums, wrong_sums = self._all_reduce()
        return StepRun(
            units_moved=units,
            bytes_moved=units * self._unit_bytes,
            step_ms=1e3 * seconds,
            stages=StageTimes({"transfer": 1e3 * seconds}),
            wrong_units=wrong,
            first_wrong=first,
            sums_checked=sums,
            wrong_sums=wrong_sums,
        )

    def check_pool(self) -> tuple[int, str | None]:
        """Check every slot: the last unit moved there, or untouched poison."""
        wrong = 0
        first: str | None = None
        for shard in self._shards:
            count, text = _check_slots(shard, np.arange(len(shard.device)))
            wrong += count
            first = first or text
        return wrong, first

    def close(self) -> None:
        """Drop the pools."""
        self._shards = ()

    def _all_reduce(self) -> tuple[int, int]:
        """Do a step's all-reduces; return how many elements all ranks hold, and how many wrong."""
        ranks, sites = len(self._shards), self.all_reduces
        whole = expected_sum(ranks, SUM_ELEMENTS, sites)
        parts = [contribution(rank, ranks, SUM_ELEMENTS, sites) for rank in range(ranks)]
        checked = wrong = 0
        for site in range(sites):
            place = slice(site, site + SUM_ELEMENTS)
            buffers = [part[place].copy() for part in parts]
            self._sum(buffers)
            checked += sum(len(buffer) for buffer in buffers)
            wrong += sum(int((buffer != whole[place]).sum()) for buffer in buffers)
        return checked, wrong

    def _sum(self, buffers: list[Floats]) -> None:
        """Sum over the devices."""
        ring_all_reduce(buffers)

    def _copy(self, shard: _Shard, moves: StepMoves, slots: Int64) -> int:
        """Copy the units of each layer in turn; return how many were written."""
        copied = 0
        for layer in range(len(moves.layer_offset) - 1):
            part = slice(int(moves.layer_offset[layer]), int(moves.layer_offset[layer + 1]))
            source = shard.host[moves.host_unit[part]]
            shard.device[slots[part]] = source
            copied += source.nbytes // (2 * shard.device.shape[1])
        return copied


@dataclass(frozen=True)
class _Budget:
    """Limit one shard: bytes of both pools together, and of the host pool (None: half)."""

    total_bytes: int
    host_bytes: int | None

    @property
    def half_bytes(self) -> int:
        return self.total_bytes // 2


def _make_shard(schedule: Schedule, shard: tuple[int, int], budget: _Budget) -> _Shard:
    whole = plan_moves(schedule, None, shard)
    slot_bytes = budget.half_bytes // max(1, whole.slots)
    if slot_bytes < MIN_UNIT_BYTES:
        raise UsageError(
            f"the CPU reference needs {2 * MIN_UNIT_BYTES * whole.slots} bytes for this schedule's "
            f"{whole.slots} slots, {budget.total_bytes} are allowed; replay a smaller run"
        )
    elements = min(schedule.unit_bytes // 2, 1 << (slot_bytes.bit_length() - 2))
    if 2 * elements < MIN_UNIT_BYTES:
        raise UsageError(f"units of {schedule.unit_bytes} bytes cannot hold their address")
    host_bytes = min(budget.half_bytes, budget.host_bytes or budget.half_bytes)
    units = host_bytes // (2 * elements)
    plan = plan_moves(schedule, units, shard)
    host = np.empty((plan.placement.units, elements), dtype=np.uint16)
    for start in range(0, len(host), _chunk(elements)):
        stop = min(len(host), start + _chunk(elements))
        host[start:stop] = stamp(np.arange(start, stop), elements)
    device = np.full((plan.slots, elements), POISON, dtype=np.uint16)
    return _Shard(plan, host, device, np.full(plan.slots, -1, dtype=np.int64))


def _chunk(elements: int) -> int:
    """Return how many units are hashed at once: a hash takes eight bytes per element."""
    return max(1, _CHECK_CHUNK_BYTES // (8 * elements))


def _pool_info(shard: _Shard, unit_bytes: int) -> PoolInfo:
    return PoolInfo(
        unit_bytes=unit_bytes,
        executed_unit_bytes=2 * shard.device.shape[1],
        device_slots=shard.plan.slots,
        modelled_host_units=shard.plan.placement.modelled_units,
        host_units=shard.plan.placement.units,
    )


def _check_slots(shard: _Shard, slots: Int64) -> tuple[int, str | None]:
    """Count slots that do not hold what they must, and describe the first of them."""
    wrong = 0
    first: str | None = None
    step = _chunk(shard.device.shape[1])
    for start in range(0, len(slots), step):
        part = slots[start : start + step]
        bad = part[_wrong_slots(shard, part)]
        wrong += len(bad)
        if first is None and len(bad):
            at = bad[:1]
            found = int(address_of(shard.device[at])[0])
            first = f"slot {at[0]} must hold unit {shard.expected[at[0]]}, its stamp says {found}"
    return wrong, first


def _wrong_slots(shard: _Shard, slots: Int64) -> npt.NDArray[np.bool_]:
    """Return which slots are wrong: another unit than the last one moved there, or not poison."""
    expected = shard.expected[slots]
    bad = np.zeros(len(slots), dtype=bool)
    touched = expected >= 0
    bad[touched] = wrong_units(shard.device[slots[touched]], expected[touched])
    bad[~touched] = (shard.device[slots[~touched]] != POISON).any(axis=1)
    return bad
