"""Check every call of the kernels on the queries and keys of a model, against plain arithmetic.

Scores and attention are computed once more in float64 from the same units and tiles; selection is
repeated by its text compiled for the CPU; gathered units are compared with those of the host.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gpu_exec.model.choice import Residents
from gpu_exec.model.host_kernels import HostKernels
from gpu_exec.model.kernels import PageKernels
from gpu_exec.model.page import KEY_TILE_BLOCKS, LOCAL_SLOTS, PageShape

_STATE = (
    *("slot_block", "stamp", "table", "count", "counts"),
    *("bounds", "source", "target", "cursor"),
)


@dataclass
class KernelTally:
    """Count what was compared.

    ``target_differs``: choices of the best blocks that differ from those by float64 scores, and
    ``exchanged_gap`` the largest distance of the scores of blocks that were exchanged then, as a
    share of the score. Errors of scores and outputs are the largest absolute difference over the
    largest value of the same pair.
    """

    targets: int = 0
    target_differs: int = 0
    exchanged_gap: float = 0.0
    score_error: float = 0.0
    selections: int = 0
    selection_differs: int = 0
    units_gathered: int = 0
    units_wrong: int = 0
    outputs: int = 0
    output_error: float = 0.0
    appended: int = 0
    appended_wrong: int = 0

    def to_json(self) -> dict[str, int | float]:
        """Return the counts by name."""
        return asdict(self)


class CheckedKernels:
    """Run kernels and tally how far they are from plain arithmetic."""

    def __init__(self, inner: PageKernels, shape: PageShape, device: Any, chosen: Any) -> None:
        """Check ``inner``; ``chosen`` are the rows' counts of chosen blocks, for the targets."""
        self._inner = inner
        self._shape = shape
        self._places = torch.from_numpy(shape.token_places).to(device)
        self._bounds = torch.from_numpy(shape.bound_places).to(device)
        self._chosen = chosen
        self._host = HostKernels(shape)
        self.tally = KernelTally()

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that the gathers have moved so far."""
        return self._inner.moved_bytes

    def append(self, both: Any, memory: Any, tiles: Any, position: Any) -> None:
        """Append, then look for each token in its unit and for its block's extremes in the tile."""
        shape, size = self._shape, self._shape.block_tokens
        pair = torch.arange(shape.pairs, device=memory.device)
        at = position.long().repeat_interleave(shape.heads)
        block, token = at // size, at % size
        tile, inside = block // KEY_TILE_BLOCKS, self._bounds[block % KEY_TILE_BLOCKS]
        before = None if tiles is None else tiles[pair[:, None], tile[:, None], inside].float()
        self._inner.append(both, memory, tiles, position)
        unit = pair * shape.slots_per_pair + shape.slots + block % LOCAL_SLOTS
        found = memory[unit[:, None, None], self._places[token]]
        expected = torch.stack(both.chunk(2, dim=1), dim=2).flatten(0, 1)
        wrong = (found != expected).flatten(1).any(dim=1)
        if before is not None:
            high, low = before.chunk(2, dim=1)
            key, first = expected[:, 0].float(), token[:, None] == 0
            high = torch.where(first, key, torch.maximum(high, key))
            low = torch.where(first, key, torch.minimum(low, key))
            after = tiles[pair[:, None], tile[:, None], inside].float()
            wrong |= (after != torch.cat([high, low], dim=1)).any(dim=1)
        self.tally.appended += shape.pairs
        self.tally.appended_wrong += int(wrong.sum())

    def scan(self, query: Any, tiles: Any, scores: Any, position: Any) -> None:
        """Scan, then compare scores and the best blocks by them."""
        self._inner.scan(query, tiles, scores, position)
        shape = self._shape
        blocks = (int(position[0]) + 1) // shape.block_tokens
        bounds = tiles[:, :, self._bounds].double().flatten(1, 2)[:, :blocks]
        high, low = bounds.chunk(2, dim=-1)
        grouped = query.double().reshape(shape.pairs, shape.group, -1)
        exact = grouped.clamp(min=0.0) @ high.mT + grouped.clamp(max=0.0) @ low.mT
        exact = exact.amax(dim=1).view(shape.rows, shape.heads, blocks)
        found = scores[..., :blocks].double()
        error = (found - exact).abs().amax(dim=-1) / exact.abs().amax(dim=-1).clamp(min=1e-30)
        self.tally.score_error = max(self.tally.score_error, float(error.max()))
        self._compare_targets(found, exact)

    def _compare_targets(self, found: Tensor, exact: Tensor) -> None:
        ours, theirs = _ranks(found), _ranks(exact)
        chosen = self._chosen.to(found.device)[:, None, None]
        only_ours = (ours < chosen) & (theirs >= chosen)
        only_theirs = (theirs < chosen) & (ours >= chosen)
        differs = only_ours.any(dim=-1)
        self.tally.targets += differs.numel()
        self.tally.target_differs += int(differs.sum())
        if bool(differs.any()):
            best = exact.masked_fill(~only_theirs, -torch.inf).amax(dim=-1)[differs]
            worst = exact.masked_fill(~only_ours, torch.inf).amin(dim=-1)[differs]
            gap = float(((best - worst) / best.abs().clamp(min=1e-30)).max())
            self.tally.exchanged_gap = max(self.tally.exchanged_gap, gap)

    def attend(
        self, query: Any, memory: Any, table: Any, counts: Any, position: Any, scaling: float
    ) -> Any:
        """Attend, then compare the outputs of the last row of queries."""
        out = self._inner.attend(query, memory, table, counts, position, scaling)
        exact = self._exact_attention(query, memory, table, counts, int(position[0]), scaling)
        found = out[-1].double()
        error = (found - exact).abs().amax(dim=-1) / exact.abs().amax(dim=-1).clamp(min=1e-30)
        self.tally.outputs += error.numel()
        self.tally.output_error = max(self.tally.output_error, float(error.max()))
        return out

    def _exact_attention(
        self, query: Any, memory: Any, table: Any, counts: Any, position: int, scaling: float
    ) -> Tensor:
        """Attend the last row of queries in float64 from the same units; [R, Hq, d]."""
        shape, size = self._shape, self._shape.block_tokens
        active, last = position // size, position + query.shape[0] - 1
        listed = torch.full_like(table[:, 0], active) if counts is None else counts
        table = table[:, : int(listed.max())]
        first = torch.arange(shape.pairs, device=table.device) * shape.slots_per_pair + shape.slots
        local = torch.stack([first + (active + more) % LOCAL_SLOTS for more in range(2)], dim=1)
        units = torch.cat([table.long(), local], dim=1)
        both = memory[units][..., self._places].double().flatten(1, 2)
        there = torch.arange(table.shape[1], device=table.device) < listed[:, None]
        tokens = active * size + torch.arange(2 * size, device=table.device)
        seen = torch.cat(
            [
                there.repeat_interleave(size, dim=1),
                (tokens <= last).expand(shape.pairs, -1),
            ],
            dim=1,
        )
        grouped = query[-1].double().reshape(shape.pairs, shape.group, -1)
        scores = (grouped @ both[:, :, 0].mT * scaling).masked_fill(~seen[:, None], -torch.inf)
        return (torch.softmax(scores, dim=-1) @ both[:, :, 1]).view(
            shape.rows, -1, grouped.shape[2]
        )

    def select(self, row: Residents, scores: Any, position: Any, step: Any, cap: int) -> None:
        """Select, then repeat it on the CPU from the same state and compare every pool."""
        twin = replace(row, **{name: getattr(row, name).cpu().clone() for name in _STATE})
        self._inner.select(row, scores, position, step, cap)
        self._host.select(twin, scores.cpu().contiguous(), position.cpu(), step.cpu(), cap)
        same = all(
            torch.equal(getattr(row, name).cpu(), getattr(twin, name))
            for name in ("slot_block", "stamp", "count", "counts", "bounds")
        )
        self.tally.selections += 1
        self.tally.selection_differs += not (same and _units(row) == _units(twin))

    def gather(self, row: Residents, host: Any, memory: Any) -> None:
        """Gather, then compare the units that moved with the host's."""
        self._inner.gather(row, host, memory)
        moves = int(row.bounds[1])
        source, target = row.source[:moves].cpu(), row.target[:moves].long()
        expected = host[source].view(torch.int16).to(memory.device)
        wrong = (memory[target].view(torch.int16) != expected).any(dim=1)
        self.tally.units_gathered += moves
        self.tally.units_wrong += int(wrong.sum())


def _ranks(scores: Tensor) -> Tensor:
    """Return each block's rank, best 0, equal scores by block."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _units(row: Residents) -> list[list[int]]:
    """Return the units to attend by head."""
    table, count = row.table.cpu().tolist(), row.count.cpu().tolist()
    return [units[:number] for units, number in zip(table, count, strict=True)]
