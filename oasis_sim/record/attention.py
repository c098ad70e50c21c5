"""Attention of a recorded model: the library calls here with queries and keys after RoPE.

A pass decides what each row sees. The model's own code does everything else, so that every
architecture that routes its attention through the library's attention interface is recorded as
it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from oasis_sim.errors import InputError

ATTENTION_NAME = "oasis_record"
"""The name under which the library knows this attention."""


@dataclass(frozen=True)
class LayerInput:
    """Hold what a layer hands to attention: query [Hq, Q, d], key and value [H, Q, d]."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    span: int | None  # tokens that a row sees, itself included; None = all before it


class AttentionPass(Protocol):
    """Compute the attention of one forward pass, layer by layer."""

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, Q, d]."""
        ...


class KeyValueStore:
    """Keep keys (after RoPE) and values of one request, all layers, in position order."""

    def __init__(self, layers: int, capacity: int) -> None:
        """Make room for ``capacity`` tokens per layer; memory is taken as layers are filled."""
        self._capacity = capacity
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._filled = [0] * layers

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self._filled)

    @property
    def capacity(self) -> int:
        """Return the tokens that a layer can hold."""
        return self._capacity

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Add the next tokens of a layer, [H, Q, d] each."""
        keys, values = self._keys[layer], self._values[layer]
        if keys is None or values is None:
            keys = key.new_empty((key.shape[0], self._capacity, key.shape[2]))
            values = value.new_empty((value.shape[0], self._capacity, value.shape[2]))
            self._keys[layer], self._values[layer] = keys, values
        start = self._filled[layer]
        end = start + key.shape[1]
        keys[:, start:end], values[:, start:end] = key, value
        self._filled[layer] = end

    def filled(self, layer: int) -> int:
        """Return the tokens that a layer holds."""
        return self._filled[layer]

    def keys(self, layer: int) -> Tensor:
        """Return a layer's keys, [H, S, d]."""
        keys = self._keys[layer]
        assert keys is not None
        return keys[:, : self._filled[layer]]

    def values(self, layer: int) -> Tensor:
        """Return a layer's values, [H, S, d]."""
        values = self._values[layer]
        assert values is not None
        return values[:, : self._filled[layer]]


class CausalPass:
    """Append the rows to the store and let each see all before it, and itself."""

    def __init__(self, store: KeyValueStore, *, keep_queries: bool) -> None:
        """Attend over ``store``; ``keep_queries`` collects each layer's query."""
        self.store = store
        self._keep = keep_queries
        self.queries: dict[int, Tensor] = {}
        self.spans: dict[int, int | None] = {}
        self.scalings: dict[int, float] = {}

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, Q, d]."""
        layer = inputs.layer
        self.store.append(layer, inputs.key, inputs.value)
        if self._keep:
            self.queries[layer] = inputs.query
        self.spans[layer], self.scalings[layer] = inputs.span, inputs.scaling
        filled = self.store.filled(layer)
        rows = torch.arange(filled - inputs.query.shape[1], filled, device=inputs.query.device)
        return causal_attention(inputs, self.store, rows)


def causal_attention(inputs: LayerInput, store: KeyValueStore, rows: Tensor) -> Tensor:
    """Attend what a store holds up to each row's position, itself included, [Hq, Q, d].

    rows int64 [Q], ascending. Keys out of a sliding window's sight are not looked at.
    """
    first, last = int(rows[0]), int(rows[-1])
    start = 0 if inputs.span is None else max(first - inputs.span + 1, 0)
    seen = slice(start, last + 1)
    keys, values = store.keys(inputs.layer)[:, seen], store.values(inputs.layer)[:, seen]
    columns = torch.arange(start, last + 1, device=keys.device)
    return masked_attention(inputs, keys, values, visible(rows, columns, inputs.span))


def visible(rows: Tensor, columns: Tensor, span: int | None) -> Tensor:
    """Return which columns' positions a row's position may see, itself included, bool [Q, S]."""
    seen = columns[None, :] <= rows[:, None]
    if span is not None:
        seen &= columns[None, :] > rows[:, None] - span
    return seen


class ReplayPass:
    """Run rows whose keys and values the store holds: each sees all before it, and itself."""

    def __init__(self, store: KeyValueStore, positions: Tensor) -> None:
        """Attend over ``store`` with rows at ``positions``, int64 [Q]."""
        self._store = store
        self._positions = positions

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, Q, d]."""
        return causal_attention(inputs, self._store, self._positions.to(inputs.query.device))


class BlockChooser(Protocol):
    """Choose the blocks that independent rows attend."""

    def choose(self, inputs: LayerInput) -> Tensor:
        """Return which tokens of the store each row may attend, bool [H, R, S]."""
        ...


class RowsPass:
    """Let independent rows see the store's tokens before their positions, and themselves.

    Nothing is appended: the rows do not see each other. A chooser restricts what is attended of
    the store.
    """

    def __init__(
        self, store: KeyValueStore, positions: Tensor, chooser: BlockChooser | None = None
    ) -> None:
        """Attend over ``store`` with rows at ``positions``, int64 [R]."""
        self._store = store
        self._positions = positions
        self._chooser = chooser

    def attend(self, inputs: LayerInput) -> Tensor:
        """Return the heads' output, [Hq, R, d]."""
        keys, values = self._store.keys(inputs.layer), self._store.values(inputs.layer)
        rows = self._positions
        # Position - 1 as the row: the store holds the trajectory's own token at the position.
        columns = torch.arange(keys.shape[1], device=keys.device)
        seen = visible(rows - 1, columns, _less_one(inputs.span))
        mask = seen.expand(keys.shape[0], *seen.shape)
        if self._chooser is not None:
            mask = mask & self._chooser.choose(inputs)
        itself = torch.eye(len(rows), dtype=torch.bool, device=keys.device)
        itself = itself.expand(keys.shape[0], -1, -1)
        mask = torch.cat([mask, itself], dim=2)
        mask = mask.repeat_interleave(inputs.query.shape[0] // keys.shape[0], dim=0)
        keys = torch.cat([keys, inputs.key], dim=1)
        values = torch.cat([values, inputs.value], dim=1)
        return masked_attention(inputs, keys, values, mask)


def _less_one(span: int | None) -> int | None:
    return None if span is None else span - 1


def masked_attention(inputs: LayerInput, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend keys and values [H, S, d] where a mask, [Q, S] or [Hq, Q, S], is true."""
    if inputs.query.is_cuda:
        return _grouped_attention(inputs, keys, values, mask)
    out: Tensor = scaled_dot_product_attention(
        inputs.query[None],
        keys[None],
        values[None],
        attn_mask=mask[None] if mask.dim() == 3 else mask,
        scale=inputs.scaling,
        enable_gqa=inputs.query.shape[0] != keys.shape[0],
    )
    return out[0]


def _grouped_attention(inputs: LayerInput, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attend with the query heads of a group as more rows of their KV head.

    On a GPU the kernels that take a mask and hold no score matrix want as many query as KV heads.
    """
    heads, group = keys.shape[0], inputs.query.shape[0] // keys.shape[0]
    rows = mask.repeat(group, 1) if mask.dim() == 2 else mask.reshape(heads, -1, mask.shape[-1])
    query = inputs.query.reshape(heads, -1, inputs.query.shape[2])
    out: Tensor = scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=rows[None], scale=inputs.scaling
    )
    return out[0].reshape(inputs.query.shape[0], -1, values.shape[2])


def layer_stack(model: Any) -> tuple[Any, str]:
    """Return the module that holds a model's layers, and its attribute's name.

    Raises InputError for a model that keeps them elsewhere.
    """
    decoder = model.get_decoder()
    for name in ("layers", "h"):
        if isinstance(getattr(decoder, name, None), torch.nn.ModuleList):
            return decoder, name
    raise InputError(
        "the recorder does not find this model's layers", field="drafter", fix="use other drafters"
    )


def register_attention() -> None:
    """Make the library route attention to the pass that a forward call carries."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attention_interface)


def _attention_interface(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_mask: Any, **facts: Any
) -> tuple[Tensor, None]:
    """Hand one layer's tensors [1, heads, Q, d] to the pass; return [1, Q, Hq, d].

    The signature is the library's; its mask is not used, since the pass has its own.
    """
    attention: AttentionPass | None = facts.get("oasis_pass")
    if attention is None:
        raise InputError("this model hides its attention from the recorder", field="model_type")
    inputs = LayerInput(
        layer=int(module.layer_idx),
        query=query[0],
        key=key[0],
        value=value[0],
        scaling=float(facts["scaling"]),
        span=facts.get("sliding_window"),
    )
    return attention.attend(inputs).transpose(0, 1)[None], None


def run_pass(model: Any, tokens: Tensor, positions: Tensor, attention: AttentionPass) -> Tensor:
    """Run token ids [Q] at positions [Q] through the model; return final states [Q, hidden]."""
    device = model.device
    out = model.get_decoder()(
        input_ids=tokens[None].to(device),
        position_ids=positions[None].to(device),
        use_cache=False,
        oasis_pass=attention,
    )
    states: Tensor = out.last_hidden_state[0]
    return states
