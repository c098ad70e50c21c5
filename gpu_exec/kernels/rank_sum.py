"""One device's part in the all-reduces of a step: the real one, and one on known patterns."""

from __future__ import annotations

from typing import Any, Protocol

from gpu_exec.kernels.marks import Marks
from gpu_exec.sums import PER_LAYER, contribution, expected_sum


class Group(Protocol):
    """Join devices (`nccl.NcclGroup`)."""

    ranks: int

    def all_reduce(self, rank: int, x: Any) -> None:
        """Enqueue the sum of a tensor over all devices, in place."""


class RankSum:
    """Sum bf16 [rows, hidden] over all devices, in place, on the current stream.

    `site` numbers the all-reduces of a step from 0.
    """

    def __init__(
        self, group: Group, rank: int, elements: int, sites: int, device: str = "cuda"
    ) -> None:
        """Put this rank's pattern and the expected sum on the device."""
        import torch

        self._group, self.rank = group, rank
        self._mine, self._whole = (
            torch.from_numpy(numbers).to(device, torch.bfloat16)
            for numbers in (
                contribution(rank, group.ranks, elements, sites),
                expected_sum(group.ranks, elements, sites),
            )
        )
        self._checked, self._wrong = torch.zeros(2, 1, dtype=torch.int64, device=device)

    def plain(self, x: Any, site: int) -> None:
        """Sum what the devices have; every site alike."""
        del site
        self._group.all_reduce(self.rank, x)

    def checked(self, x: Any, site: int) -> None:
        """Put the site's pattern into `x`, sum, and count the elements that are wrong."""
        flat, part = x.view(-1), slice(site, site + x.numel())
        flat.copy_(self._mine[part])
        self.plain(x, site)
        self._wrong.add_((flat != self._whole[part]).sum())
        self._checked.add_(x.numel())

    def counts(self) -> tuple[int, int]:
        """Return how many elements were checked since the last call, and how many were wrong."""
        found = int(self._checked.item()), int(self._wrong.item())
        self._checked.zero_()
        self._wrong.zero_()
        return found


class StepSums:
    """What a captured step sums over devices: nothing, its residual stream `x`, or patterns.

    The first device alone adds the residual to what it sums (`residual` is None on the others).
    """

    def __init__(self, joined: RankSum | None, x: Any, checked: bool) -> None:
        self.on = joined is not None
        self.residual = x if joined is None or joined.rank == 0 else None
        self._x = x
        self._reduce = None if joined is None else joined.checked if checked else joined.plain

    def enqueue(self, layer: int, half: int, marks: Marks) -> None:
        """Sum after the output projection (half 0) or after the FFN (half 1) of a layer."""
        if self._reduce is not None:
            with marks.span("all_reduce", layer):
                self._reduce(self._x, PER_LAYER * layer + half)
