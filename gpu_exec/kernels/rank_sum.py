"""One device's part in the all-reduces of a step: the real one, and one on known patterns."""

from __future__ import annotations

from typing import Any

from gpu_exec.nccl import NcclGroup
from gpu_exec.sums import contribution, expected_sum


class RankSum:
    """Sum bf16 [rows, hidden] over all devices, in place, on the current stream.

    `site` numbers the all-reduces of a step from 0.
    """

    def __init__(self, group: NcclGroup, rank: int, elements: int, sites: int) -> None:
        """Put this rank's pattern and the expected sum on the current device."""
        import torch

        def on_device(numbers: Any) -> Any:
            return torch.from_numpy(numbers).to("cuda", torch.bfloat16)

        self._group, self.rank = group, rank
        self._mine = on_device(contribution(rank, group.ranks, elements, sites))
        self._whole = on_device(expected_sum(group.ranks, elements, sites))
        self._checked, self._wrong = torch.zeros(2, 1, dtype=torch.int64, device="cuda")

    def plain(self, x: Any, site: int) -> None:
        """Sum what the devices have; every site alike."""
        del site
        import torch

        stream = torch.cuda.current_stream().cuda_stream
        self._group.all_reduce(self.rank, x.data_ptr(), x.numel(), stream)

    def checked(self, x: Any, site: int) -> None:
        """Put the site's pattern into `x`, sum, and count the elements that are wrong."""
        flat = x.view(-1)
        part = slice(site, site + x.numel())
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
