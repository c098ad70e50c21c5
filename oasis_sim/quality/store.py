"""Keys and values of rows that decode side by side: the prompt's are shared, each has its own tail.

Tensors of several rows keep the order [H, G, R, ...] (KV heads, query heads of a group, rows): the
library's query [Hq, R, d] is a view of it, and the shared keys of a head meet the queries of all
rows and of its group in one matrix product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oasis_sim.quality.key_index import KeyIndex
from oasis_sim.quality.start import Start
from oasis_sim.quality.summaries import outlier_blocks, summary_of
from oasis_sim.record.attention import LayerInput
from oasis_sim.record.orders import join_heads

Rows = slice | list[int]
"""Which of a store's rows some queries belong to; ``ALL`` are views, a list copies."""

ALL = slice(None)


class LayerStore:
    """Hold one layer: complete blocks of the prompt once, and the tokens after them per row.

    Everything is kept in float32, in which 16-bit models' keys and values are exact. The tail has
    room for the decoded tokens and one more, where a draft lies while its row attends.
    """

    def __init__(self, start: Start, layer: int, rows: int) -> None:
        """Begin with the prompt."""
        size, tokens = start.block_tokens, len(start.prompt)
        self._size, self._rounded = size, 0
        self.shared = tokens // size * size
        keys, values = start.store.keys(layer).float(), start.store.values(layer).float()
        self.keys, self.values = keys[:, : self.shared], values[:, : self.shared]
        shape = (keys.shape[0], rows, tokens - self.shared + start.room + 1, keys.shape[2])
        self.tail_keys, self.tail_values = keys.new_zeros(shape), values.new_zeros(shape)
        rest = tokens - self.shared
        self.tail_keys[:, :, :rest] = keys[:, None, self.shared : tokens]
        self.tail_values[:, :, :rest] = values[:, None, self.shared : tokens]
        self.filled = tokens

    def stand_in(
        self, start: Start, layer: int, index: KeyIndex, block_tokens: int, newest: int
    ) -> NDArray[np.bool_]:
        """Put low-rank keys in place of the prompt's where blocks are fetched.

        Returns the blocks that are always attended with their own keys, bool [H, blocks]: outliers,
        and all from the last ``newest`` - 1 complete blocks of the prompt on.
        """
        blocks = self.shared // block_tokens
        always = torch.ones(self.keys.shape[0], start.blocks, dtype=torch.bool)
        old = max(blocks - newest + 1, 0)
        outliers = outlier_blocks(
            self.keys[:, : old * block_tokens], block_tokens, index.outlier_blocks
        )
        always[:, :old] = outliers
        own = always[:, :blocks].repeat_interleave(block_tokens, dim=1)
        low_rank = start.low_rank[layer][:, : self.shared]
        self.keys = torch.where(own[..., None], self.keys, low_rank)
        return np.asarray(always)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add each row's next token, [H, R, d] each."""
        place = self.filled - self.shared
        self.tail_keys[:, :, place], self.tail_values[:, :, place] = key, value
        self.filled += 1

    def round_to_8bit(self, first: int, end: int) -> None:
        """Round keys and values of the blocks first .. end - 1 to e4m3, each block once."""
        begin, end = max(first, self._rounded) * self._size, end * self._size
        if begin >= end:
            return
        if begin < self.shared:
            place = slice(begin, min(end, self.shared))
            self.keys, self.values = self.keys.clone(), self.values.clone()  # others read them too
            for part in (self.keys, self.values):
                part[:, place] = part[:, place].to(torch.float8_e4m3fn).float()
        late = slice(max(begin - self.shared, 0), max(end - self.shared, 0))
        for part in (self.tail_keys, self.tail_values):
            part[:, :, late] = part[:, :, late].to(torch.float8_e4m3fn).float()
        self._rounded = end // self._size

    @contextlib.contextmanager
    def borrowed(self, inputs: LayerInput, rows: Rows, token: int) -> Iterator[None]:
        """Put other keys and values in some rows' place of a token, and what was there back."""
        place = (slice(None), rows, token - self.shared)
        kept = self.tail_keys[place].clone(), self.tail_values[place].clone()
        self.tail_keys[place], self.tail_values[place] = inputs.key.float(), inputs.value.float()
        yield
        self.tail_keys[place], self.tail_values[place] = kept

    def scores(self, query: Tensor, rows: Rows, first: int, tokens: int) -> Tensor:
        """Return q k of the tokens first .. tokens - 1, [H, G, R, S]; query [Hq, R, d]."""
        heads, dim = self.keys.shape[0], self.keys.shape[2]
        grouped = query.float().reshape(heads, -1, dim)
        split = grouped.view(heads, -1, query.shape[1], dim)
        tail = self.tail_keys[:, rows, : tokens - self.shared]
        near = split.transpose(1, 2) @ tail.transpose(2, 3)
        if first >= self.shared:
            return near.transpose(1, 2)[..., first - self.shared :]
        far = grouped @ self.keys[:, first:].transpose(1, 2)
        return torch.cat([far.view(*split.shape[:3], -1), near.transpose(1, 2)], dim=-1)

    def weighted(self, weights: Tensor, rows: Rows, first: int, tokens: int) -> Tensor:
        """Return the values of the tokens first .. tokens - 1, weighted, [Hq, R, d]."""
        heads, group, count, _ = weights.shape
        far = max(self.shared - first, 0)
        skip = max(first - self.shared, 0)
        tail = self.tail_values[:, rows, skip : tokens - self.shared]
        near = (weights[..., far:].transpose(1, 2) @ tail).transpose(1, 2)
        if far:
            flat = weights[..., :far].reshape(heads, group * count, far)
            near = near + (flat @ self.values[:, first:]).view(near.shape)
        return near.reshape(heads * group, count, -1)


class LayerBounds:
    """Keep what the index has of complete blocks: the prompt's once, later ones per row."""

    def __init__(self, start: Start, layer: int, index: KeyIndex) -> None:
        """Begin with the prompt's blocks."""
        keys = start.store.keys(layer)[:, : len(start.prompt)]
        self._size = start.block_tokens
        self._join = start.bound_join
        self._summary = summary_of(index, keys)
        self._shared = self._summary(keys, self._size)
        self._tail: tuple[Tensor, Tensor] | None = None

    def scores(self, inputs: LayerInput, store: LayerStore, rows: Rows, blocks: int) -> Tensor:
        """Return the rows' scores of the first ``blocks`` blocks, float64 [R, H, N]."""
        low, high = self._shared
        heads, dim = low.shape[0], low.shape[2]
        wide = inputs.query.double().reshape(heads, -1, dim)
        upper, lower = wide.clamp(min=0.0), wide.clamp(max=0.0)
        found = upper @ high.transpose(1, 2) + lower @ low.transpose(1, 2)
        shape = (heads, -1, inputs.query.shape[1])
        found = found.view(*shape, low.shape[1])
        if blocks > low.shape[1]:
            near = self._tail_scores(
                upper.view(*shape, dim), lower.view(*shape, dim), store, rows, blocks
            )
            found = torch.cat([found, near], dim=-1)
        found = found[..., :blocks]
        listed = found.new_ones(found.shape[2:], dtype=torch.bool)
        return join_heads(found, listed, self._join, inputs.scaling)

    def _tail_scores(
        self, upper: Tensor, lower: Tensor, store: LayerStore, rows: Rows, blocks: int
    ) -> Tensor:
        """Return the same for blocks after the prompt, [H, G, R, N]; queries [H, G, R, d]."""
        low, high = self._grown(store, blocks - self._shared[0].shape[1])
        found = upper.transpose(1, 2) @ high[:, rows].transpose(2, 3)
        found += lower.transpose(1, 2) @ low[:, rows].transpose(2, 3)
        return found.transpose(1, 2)

    def _grown(self, store: LayerStore, blocks: int) -> tuple[Tensor, Tensor]:
        """Return the extremes of the first blocks after the prompt; each is looked at once."""
        known = 0 if self._tail is None else self._tail[0].shape[2]
        if known < blocks:
            heads, rows = store.tail_keys.shape[:2]
            fresh = store.tail_keys[:, :, known * self._size : blocks * self._size].flatten(0, 1)
            pair = [
                part.view(heads, rows, *part.shape[1:]) for part in self._summary(fresh, self._size)
            ]
            if self._tail is not None:
                pair = [torch.cat(both, dim=2) for both in zip(self._tail, pair, strict=True)]
            self._tail = (pair[0], pair[1])
        assert self._tail is not None
        return self._tail


def attend(store: LayerStore, inputs: LayerInput, rows: Rows, tokens: int) -> Tensor:
    """Attend the first ``tokens`` tokens, or the last ``span`` of them; return [Hq, R, d]."""
    first = 0 if inputs.span is None else max(tokens - inputs.span, 0)
    scores = store.scores(inputs.query * inputs.scaling, rows, first, tokens)
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    out = store.weighted(weights, rows, first, tokens) / _by_query(weights.sum(dim=-1))
    return out.to(inputs.query.dtype)


def attend_masked(
    store: LayerStore, inputs: LayerInput, rows: Rows, mask: Tensor, *, by_token: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attend the first tokens where a mask is true, bool [H, R, tokens].

    Returns the heads' output [Hq, R, d]; the share of full attention that the mask holds, float64
    [R, H]; with ``by_token`` the share of what was read by token, [R, H, tokens]; both means over
    each group.
    """
    tokens = mask.shape[-1]
    scores = store.scores(inputs.query * inputs.scaling, rows, 0, tokens)
    hidden = ~mask[:, None]
    best = scores.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
    weights = scores.sub_(best).exp_()
    whole = weights.sum(dim=-1)
    read = weights.masked_fill_(hidden, 0.0).sum(dim=-1)
    out = store.weighted(weights, rows, 0, tokens) / _by_query(read)
    # A hidden score far above all that are read makes the whole infinite, and the share 0.
    share = (read / whole).double().mean(dim=1).transpose(0, 1)
    each = (weights / read[..., None]).mean(dim=1).transpose(0, 1) if by_token else None
    return out.to(inputs.query.dtype), share, each


def _by_query(sums: Tensor) -> Tensor:
    """Return sums [H, G, R] as [Hq, R, 1]."""
    return sums.flatten(0, 1)[..., None]
