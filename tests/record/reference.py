"""An independent view of a model's attention: the library's eager attention, plain loops.

Queries and keys come from hooks on the projections (or their norms) and are rotated here in
float64, or, for architectures that build them otherwise, from the arguments of the library's eager
attention; attention weights are the library's own output. Nothing of the recorder is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


class EagerModel:
    """Run a model with the library's eager attention and keep what its layers see."""

    def __init__(self, place: Path | torch.nn.Module) -> None:
        """Load a folder in float32, or watch a model that the library loaded so."""
        if isinstance(place, Path):
            place = AutoModelForCausalLM.from_pretrained(
                place, attn_implementation="eager", dtype=torch.float32
            )
        self.model = place.eval()
        config = self.model.config
        self.layers = config.num_hidden_layers
        self.heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.group = config.num_attention_heads // self.heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // (
            config.num_attention_heads
        )
        self.stack = getattr(self.model.base_model, "h", None) or self.model.base_model.layers
        self._rotates = config.model_type in {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}
        self._raw: dict[tuple[int, str], np.ndarray] = {}
        if not self._rotates:
            self._watch_attention(sys.modules[type(self.stack[0]).__module__])
            return
        for number, layer in enumerate(self.stack):
            for which in ("q", "k"):
                source = getattr(layer.self_attn, f"{which}_norm", None)
                source = source or getattr(layer.self_attn, f"{which}_proj")
                source.register_forward_hook(self._keeper(number, which))

    def _watch_attention(self, code) -> None:
        """Keep what the library's eager attention is given, [heads, S, d] after RoPE."""
        attend = code.eager_attention_forward
        attend = getattr(attend, "watched", attend)

        def watched(module, query, key, *args, **kwargs):
            raw = self._raw
            raw[module.layer_idx, "q"], raw[module.layer_idx, "k"] = (
                given[0].double().numpy() for given in (query, key)
            )
            return attend(module, query, key, *args, **kwargs)

        watched.watched = attend
        code.eager_attention_forward = watched

    def theta(self, layer: int) -> float:
        """Return the base of a layer's rotary embedding."""
        rope = self.model.config.rope_parameters
        kinds = getattr(self.model.config, "layer_types", None)
        return (rope if "rope_theta" in rope else rope[kinds[layer]])["rope_theta"]

    def _keeper(self, number: int, which: str):
        def keep(module, inputs, output) -> None:
            # [1, S, heads * d], or [1, heads, S, d] where a norm comes after the split.
            out = output.detach().double().numpy()[0]
            heads = self.heads * (self.group if which == "q" else 1)
            split = out.shape[0] == heads and out.ndim == 3 and out.shape[1] != heads
            self._raw[number, which] = out.transpose(1, 0, 2) if split else out

        return keep

    def run(self, tokens: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return logits [S, V] and each layer's attention weights [Hq, S, S]."""
        with torch.no_grad():
            out = self.model(torch.tensor([tokens]), output_attentions=True, use_cache=False)
        return out.logits[0].numpy(), [weights[0].double().numpy() for weights in out.attentions]

    def query(self, layer: int) -> np.ndarray:
        """Return the last run's queries after RoPE, [S, Hq, d]."""
        return self._rotated(layer, "q")

    def key(self, layer: int) -> np.ndarray:
        """Return the last run's keys after RoPE, [S, H, d]."""
        return self._rotated(layer, "k")

    def _rotated(self, layer: int, which: str) -> np.ndarray:
        raw = self._raw[layer, which]
        if not self._rotates:
            return raw.transpose(1, 0, 2)
        split = raw.reshape(raw.shape[0], -1, self.dim)
        half = self.dim // 2
        angle = np.arange(len(split))[:, None] * self.theta(layer) ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = split[..., :half], split[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def bounds(self, layer: int, position: int, block_tokens: int) -> np.ndarray:
        """Return the bound of each complete block by the query at a position, [H, N]."""
        blocks = position // block_tokens
        keys = self.key(layer)[: blocks * block_tokens]
        split = keys.reshape(blocks, block_tokens, self.heads, self.dim)
        low, high = split.min(axis=1), split.max(axis=1)
        query = self.query(layer)[position].reshape(self.heads, self.group, self.dim)
        out = np.full((self.heads, blocks), -np.inf)
        for head in range(self.heads):
            for q in query[head]:
                bound = np.maximum(q * low[:, head], q * high[:, head]).sum(axis=-1)
                out[head] = np.maximum(out[head], bound)
        return out


def assert_orders_agree(order: np.ndarray, scores: np.ndarray, ids: np.ndarray) -> None:
    """Check an order [M] of block ids against scores of the blocks ``ids`` that it may list.

    It must list each of them once, best first. Blocks may stand in the other order only where
    their scores are equal up to the rounding of float32.
    """
    expected = ids[np.argsort(-scores[ids], kind="stable")]
    listed = order[order != 65535]
    assert sorted(expected) == sorted(listed)
    np.testing.assert_allclose(scores[listed], scores[expected], rtol=2e-6, atol=2e-6)


def block_sums(weights: np.ndarray, heads: int, block_tokens: int, blocks: int) -> np.ndarray:
    """Return attention weights [Hq, S] by block, mean over the group, [H, blocks]."""
    padded = np.zeros((len(weights), blocks * block_tokens))
    padded[:, : weights.shape[1]] = weights
    summed = padded.reshape(len(weights), blocks, block_tokens).sum(axis=-1)
    return summed.reshape(heads, -1, blocks).mean(axis=1)
