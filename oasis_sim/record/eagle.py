"""An EAGLE-3 head: one decoder layer that guesses the next token from the target's own states.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test". Names of weights and configuration are those of the published heads and of the
programs that serve them (SafeAILab/EAGLE, SpecForge, SGLang ``llama_eagle3.py``, vLLM):

- ``fc`` joins the outputs of three layers of the target; a norm over all three (``input_norm``, as
  in NVIDIA's heads for gpt-oss) or one for each (``fc_norm``, EAGLE 3.1) may come before it;
- ``midlayer`` (or ``layers.0``) attends over the pair of the next token's embedding and the joined
  states, each with a norm of its own (``input_layernorm``, ``hidden_norm``);
- ``norm`` and ``lm_head`` give logits over a vocabulary of the draft's own; ``d2t[i] + i`` is the
  target's id of its token i.

Missing ``embed_tokens`` or ``lm_head`` are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention

from oasis_sim.record.attention import KeyValueStore, visible


@dataclass(frozen=True)
class EagleShape:
    """Hold what a head's configuration says.

    ``taps`` are the layers of the target whose outputs are joined; ``norm_before_residual`` adds
    the normed states, not the joined ones, to the attention's output; ``norm_before_fc`` norms the
    three outputs as one vector, ``fc_norm`` each by itself. ``window`` is the sliding window in
    tokens, None for none. ``draft_vocab`` is the vocabulary as configured, None where it is not.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    taps: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool = False
    fc_norm: bool = False
    window: int | None = None
    draft_vocab: int | None = None


class EagleHead:
    """Guess the token after next from a token and the target's states before it."""

    def __init__(
        self, shape: EagleShape, weights: Mapping[str, Tensor], rotary: Any, activation: Any
    ) -> None:
        """Take weights by their published names, and the library's rotary embedding."""
        self.shape = shape
        self._weights = weights
        self._rotary = rotary
        self._activation = activation

    def new_store(self, capacity: int) -> KeyValueStore:
        """Return room for the keys and values of the one layer."""
        return KeyValueStore(1, capacity)

    def states(
        self, tokens: Tensor, taps: Tensor, positions: Tensor, store: KeyValueStore
    ) -> Tensor:
        """Append rows to the store; return their final states, [Q, hidden].

        Row i holds the token after position i and the target's states at position i: tokens int64
        [Q], taps [Q, 3 * target hidden], positions int64 [Q].
        """
        joined = self._linear("fc", self._normed(taps))
        embedded = embedding(tokens, self._weights["embed_tokens.weight"])
        normed = self._norm("midlayer.hidden_norm", joined)
        pair = torch.cat([self._norm("midlayer.input_layernorm", embedded), normed], dim=-1)
        residual = normed if self.shape.norm_before_residual else joined
        residual = residual + self._attend(pair, positions, store)
        state = self._norm("midlayer.post_attention_layernorm", residual)
        gate = self._activation(self._linear("midlayer.mlp.gate_proj", state))
        up = self._linear("midlayer.mlp.up_proj", state)
        return self._norm("norm", residual + self._linear("midlayer.mlp.down_proj", gate * up))

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits over the draft's own vocabulary, [Q, draft vocabulary]."""
        return self._linear("lm_head", states)

    def likeliest(self, states: Tensor) -> list[int]:
        """Return the target's ids of the likeliest tokens after some states."""
        drafts = self.logits(states).argmax(dim=-1)
        offsets = self._weights.get("d2t")
        found = drafts if offsets is None else drafts + offsets[drafts]
        return [int(token) for token in found]

    def _normed(self, taps: Tensor) -> Tensor:
        """Return the target's states as ``fc`` joins them, [Q, 3 * target hidden]."""
        if self.shape.norm_before_fc:
            return self._norm("input_norm", taps)
        if self.shape.fc_norm:
            parts = taps.chunk(len(self.shape.taps), dim=-1)
            normed = [self._norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)]
            return torch.cat(normed, dim=-1)
        return taps

    def _attend(self, pair: Tensor, positions: Tensor, store: KeyValueStore) -> Tensor:
        """Return the attention's output, [Q, hidden]; a row sees those before it."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        shape, rows = self.shape, len(pair)
        query, key, value = (
            self._linear(f"midlayer.self_attn.{name}_proj", pair)
            .view(rows, -1, shape.head_dim)
            .transpose(0, 1)
            for name in ("q", "k", "v")
        )
        cos, sin = self._rotary(pair, positions[None])
        query, key = apply_rotary_pos_emb(query[None], key[None], cos, sin)
        store.append(0, key[0], value)
        columns = torch.arange(store.filled(0), device=pair.device)
        out = scaled_dot_product_attention(
            query,
            store.keys(0)[None],
            store.values(0)[None],
            attn_mask=visible(columns[-rows:], columns, shape.window),
            enable_gqa=shape.query_heads != shape.kv_heads,
        )
        return self._linear("midlayer.self_attn.o_proj", out[0].transpose(0, 1).reshape(rows, -1))

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        return linear(inputs, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, name: str, inputs: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return rms_norm(inputs, weight.shape, weight, self.shape.norm_eps)
