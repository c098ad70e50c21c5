"""Paged keys and values of one full-attention layer: units in HBM, all blocks on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpu_exec.model.choice import new_residents
from gpu_exec.model.kernels import PageKernels
from gpu_exec.model.page import LOCAL_SLOTS, PageShape
from oasis_sim.residency.rule import ResidencyRule


class LayerPages:
    """Hold the units of all rows of a layer, and where a token goes.

    ``units`` bfloat16 [R H slots, elements]; the last two of each pair hold the block being filled
    and its successor.
    """

    def __init__(self, shape: PageShape, device: Any) -> None:
        """Allocate the units; what was never written is 0."""
        import torch

        self.shape = shape
        self.device = device
        count = shape.pairs * shape.slots_per_pair
        self.units = torch.zeros(count, shape.unit_elements, dtype=torch.bfloat16, device=device)
        self.places = torch.from_numpy(shape.token_places).to(device)
        self._by_pair = self.units.view(shape.rows, shape.heads, shape.slots_per_pair, -1)

    def local_slot(self, block: int) -> int:
        """Return the slot of a block while it is filled."""
        return self.shape.slots + block % LOCAL_SLOTS

    def local(self, block: int) -> Any:
        """Return the units of a block being filled, [R, H, elements]."""
        return self._by_pair[:, :, self.local_slot(block)]

    def slot(self, slot: int) -> Any:
        """Return the units in one slot, [R, H, elements]."""
        return self._by_pair[:, :, slot]

    def row(self, row: int) -> Any:
        """Return the units of one row, [H slots, elements]."""
        return self._by_pair[row].view(-1, self.units.shape[1])

    def fill_local(self, keys: Any, values: Any, position: int) -> None:
        """Put the tokens of the block being filled, keys and values [H, n, d], for all rows."""
        count, size = keys.shape[1], self.shape.block_tokens
        first = (position - count) % size
        both = token_pairs(self.shape, keys.transpose(0, 1), values.transpose(0, 1))
        both = side_by_side(both).transpose(0, 1).flatten(1)
        unit = self._by_pair[:, :, self.local_slot((position - count) // size)]
        unit[..., self.places[first : first + count].flatten()] = both


class OffloadedLayer:
    """Hold a layer whose blocks live on the host and whose chosen ones are resident.

    ``host`` bfloat16 [R H blocks, elements], pinned on a GPU machine; ``tiles`` extreme keys
    [R H, tiles, 32 d]; scores float32 [R, H, blocks] by the true query and for the next target.
    """

    def __init__(
        self,
        shape: PageShape,
        rules: Sequence[ResidencyRule],
        keys: Any,
        values: Any,
        device: Any,
    ) -> None:
        """Begin after a prompt, keys and values [H, S, d]."""
        import torch

        self.shape = shape
        self.pages = LayerPages(shape, device)
        tokens, size = keys.shape[1], shape.block_tokens
        whole = tokens // size * size
        pin = device.type == "cuda"
        host_shape = (shape.rows, shape.heads, shape.blocks, shape.unit_elements)
        self._host = torch.zeros(host_shape, dtype=torch.bfloat16, pin_memory=pin)
        self._host[:, :, : whole // size] = packed(shape, keys[:, :whole], values[:, :whole]).cpu()
        tiles = (shape.pairs, shape.key_tiles, shape.key_tile_elements)
        self.tiles = torch.zeros(tiles, dtype=torch.bfloat16, device=device)
        self._bounds = torch.from_numpy(shape.bound_places).to(device)
        self._bound_prompt(keys)
        self.pages.fill_local(keys[:, whole:], values[:, whole:], tokens)
        scores = (shape.rows, shape.heads, shape.score_stride)
        self.true_scores, self.target_scores, self.draft_scores = (
            torch.full(scores, -torch.inf, device=device) for _ in range(3)
        )
        self.residents, self._groups = new_residents(rules, shape, device)
        self._sink, self._kept = rules[0].sink_blocks, rules[0].recent_blocks - 1
        self._ring = always_slots(rules[0]) - self._sink
        most = max(rule.chosen_blocks for rule in rules) + self._sink + self._kept
        self.table = torch.zeros(shape.pairs, most, dtype=torch.int32, device=device)
        self._keep_always(whole // size)
        self.counts = torch.zeros(shape.pairs, dtype=torch.int32, device=device)

    @property
    def host(self) -> Any:
        """Return the host's units, [R H blocks, elements]."""
        return self._host.view(-1, self.shape.unit_elements)

    def append(self, kernels: PageKernels, both: Any, at: Any) -> None:
        """Put each row's true token, bfloat16 [R, 2 H, d], at positions int32 [R]."""
        kernels.append(both, self.pages.units, self.tiles, at)

    def complete(self, position: int) -> None:
        """After the token at a position: copy a block that is full to the host."""
        size = self.shape.block_tokens
        if (position + 1) % size:
            return
        block = position // size
        self._host[:, :, block].copy_(self.pages.local(block))
        for slot in self._always_slots([block]):
            self.pages.slot(slot).copy_(self.pages.local(block))

    def _keep_always(self, blocks: int) -> None:
        """Copy the first blocks, and the newest complete ones, to the slots they never leave."""
        for block in (*range(self._sink), *range(max(blocks - self._kept, self._sink), blocks)):
            for slot in self._always_slots([block]):
                self.pages.slot(slot).copy_(self._host[:, :, block])

    def _always_slots(self, blocks: Iterable[int]) -> list[int]:
        """Return the slots of blocks that are resident beside the pool.

        After the pools' slots come those of sink blocks, then a ring of the newest complete blocks.
        The ring has room for one block more: a draft still reads what its true row read when the
        true row's own block has been completed.
        """
        first = self.shape.slots - self._sink - self._ring
        return [
            first + (block if block < self._sink else self._sink + block % self._ring)
            for block in blocks
            if block < self._sink or self._ring
        ]

    def always(self, position: int) -> list[int]:
        """Return the complete blocks that are attended at a position whatever is chosen."""
        active = position // self.shape.block_tokens
        return [*range(self._sink), *range(max(active - self._kept, self._sink), active)]

    def _bound_prompt(self, keys: Any) -> None:
        """Keep the extremes of the prompt's blocks, the last one as far as it goes, [H, S, d]."""
        import torch

        shape, size = self.shape, self.shape.block_tokens
        blocks = -(-keys.shape[1] // size)
        whole = torch.cat([keys, keys[:, -1:].expand(-1, blocks * size - keys.shape[1], -1)], dim=1)
        split = padded(shape, whole).bfloat16().unflatten(1, (blocks, size))
        both = torch.cat([split.amax(dim=2), split.amin(dim=2)], dim=-1)
        room = both.new_zeros(shape.heads, shape.score_stride, both.shape[2])
        room[:, :blocks] = both
        tiles = self.tiles.view(shape.rows, shape.heads, shape.key_tiles, -1)
        tiles[..., self._bounds.flatten()] = room.view(shape.heads, shape.key_tiles, -1)

    def list_units(self, position: int) -> None:
        """Collect the rows' tables, counted from the first unit of all, and what is always in."""
        import torch

        shape, device = self.shape, self.table.device
        table = self.table.view(shape.rows, shape.heads, -1)
        counts = self.counts.view(shape.rows, shape.heads)
        for group in self._groups:
            home = (group.rows * (shape.heads * shape.slots_per_pair)).int()[:, None, None]
            table[group.rows, :, : group.table.shape[2]] = group.table + home
            counts[group.rows] = group.count
        slots = torch.tensor(self._always_slots(self.always(position)), device=device)
        first = torch.arange(shape.pairs, device=device)[:, None] * shape.slots_per_pair
        places = self.counts[:, None].long() + torch.arange(len(slots), device=device)
        self.table.scatter_(1, places, (first + slots).int())
        self.counts += len(slots)

    def counted(self) -> Any:
        """Return needed and admitted of the last selections, int32 [R, H, 2]."""
        import torch

        shape = self.shape
        counts = torch.zeros(
            shape.rows, shape.heads, 2, dtype=torch.int32, device=self.counts.device
        )
        for group in self._groups:
            counts[group.rows] = group.counts
        return counts

    def attended(self, position: int) -> Any:
        """Return which blocks are attended at a position, bool [R, H, B]."""
        import torch

        shape = self.shape
        device = self.tiles.device
        found = torch.zeros(shape.rows, shape.heads, shape.score_stride, device=device)
        for group in self._groups:
            slots = group.table % shape.slots_per_pair
            listed = torch.arange(slots.shape[2], device=device) < group.count[..., None]
            place = slots.long().clamp(max=group.slot_block.shape[2] - 1)
            block = group.slot_block.gather(2, place).long()
            hits = torch.zeros(*slots.shape[:2], shape.score_stride, device=device)
            hits.scatter_add_(2, block.clamp(min=0), (listed & (block >= 0)).float())
            found[group.rows] = hits
        active = position // shape.block_tokens
        found[..., [*self.always(position), active]] = 1.0
        return found[..., : active + 1] > 0


def always_slots(rule: ResidencyRule) -> int:
    """Return the slots per pair beside the pool: sink blocks, the newest, and one to write to."""
    return rule.sink_blocks + (rule.recent_blocks if rule.recent_blocks > 1 else 0)


class DenseLayer:
    """Hold a layer whose every block is resident, in order."""

    def __init__(self, shape: PageShape, keys: Any, values: Any, device: Any) -> None:
        """Begin after a prompt, keys and values [H, S, d]."""
        import torch

        self.shape = shape
        self.pages = LayerPages(shape, device)
        whole = keys.shape[1] // shape.block_tokens * shape.block_tokens
        units = packed(shape, keys[:, :whole], values[:, :whole])
        by_pair = self.pages.units.view(shape.rows, shape.heads, shape.slots_per_pair, -1)
        by_pair[:, :, : units.shape[1]] = units
        self.pages.fill_local(keys[:, whole:], values[:, whole:], keys.shape[1])
        self._by_pair = by_pair
        first = torch.arange(shape.pairs, device=device)[:, None] * shape.slots_per_pair
        self.table = (first + torch.arange(shape.slots, device=device)).int()

    def complete(self, position: int) -> None:
        """After the token at a position: keep a block that is full in its place."""
        if (position + 1) % self.shape.block_tokens == 0:
            block = position // self.shape.block_tokens
            self._by_pair[:, :, block] = self.pages.local(block)


def padded(shape: PageShape, values: Any) -> Any:
    """Return values [..., d] with zeros up to the kernels' head dimension."""
    from torch.nn.functional import pad

    return pad(values, (0, shape.width - values.shape[-1]))


def token_pairs(shape: PageShape, key: Any, value: Any) -> Any:
    """Return tokens' keys and values [N, H, d] as the kernels take them, bfloat16 [N, 2 H, d]."""
    import torch

    return padded(shape, torch.cat([key, value], dim=1).bfloat16()).contiguous()


def side_by_side(both: Any) -> Any:
    """Return keys, then values, [N, 2 H, d], beside one another, [N, H, 2 d]."""
    import torch

    return torch.cat(both.chunk(2, dim=1), dim=2)


def packed(shape: PageShape, keys: Any, values: Any) -> Any:
    """Return whole blocks of keys and values [H, S, d] as units, [H, blocks, elements]."""
    import torch

    heads, tokens, _ = keys.shape
    both = token_pairs(shape, keys.transpose(0, 1), values.transpose(0, 1))
    both = side_by_side(both).transpose(0, 1)
    both = both.reshape(heads, tokens // shape.block_tokens, shape.unit_elements)
    units = torch.empty_like(both)
    units[..., torch.from_numpy(shape.token_places).flatten().to(keys.device)] = both
    return units
