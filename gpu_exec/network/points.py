"""Which transfers are measured: some to fit the network model, others only to judge it."""

from __future__ import annotations

from dataclasses import dataclass

from oasis_sim.network import Transfer
from oasis_sim.units import KIB, MIB

POOL_BYTES = 64 * MIB
"""Memory of either side; units lie scattered in it."""
MOST_BYTES = 4 * MIB
"""The largest transfer: short beside the time for which an operating system lets a process run."""
MOST_GPU_BYTES = 16 * MIB
"""The same between GPUs, where bytes cost so little that fewer of them could not be told apart."""
FIT_SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB)
FIT_COUNTS = (1, 4, 16, 64, 256)
JUDGE_SIZES = (8 * KIB, 24 * KIB, 32 * KIB, 96 * KIB, 128 * KIB, 512 * KIB)
JUDGE_COUNTS = (2, 10, 40, 150)


@dataclass(frozen=True)
class Point:
    """One kind of transfer: `count` scattered units of one size; `judges` if it is held out."""

    unit_bytes: int
    count: int
    judges: bool

    @property
    def transfer(self) -> Transfer:
        """Return the transfer that the simulator prices."""
        return Transfer.of(self.count, self.unit_bytes)

    def label(self) -> str:
        """Name the point for messages."""
        return f"{self.count} x {self.unit_bytes:,} B"


def most_bytes_of(memory: str) -> int:
    """Return the largest transfer measured in ``host`` or ``gpu`` memory."""
    return MOST_GPU_BYTES if memory == "gpu" else MOST_BYTES


def points(most_bytes: int = MOST_BYTES) -> tuple[Point, ...]:
    """Return all points up to a size; no size or count of a judging point is used to fit."""
    kinds = ((FIT_SIZES, FIT_COUNTS, False), (JUDGE_SIZES, JUDGE_COUNTS, True))
    return tuple(
        Point(size, count, judges)
        for sizes, counts, judges in kinds
        for size in sizes
        for count in counts
        if size * count <= most_bytes
    )
