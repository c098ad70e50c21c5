"""Keys rebuilt from factors of low rank, made before the keys are rotated (ShadowKV).

The library hands out rotated keys; they are turned back here, which is tried on the model first.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.quality.start import Start
from oasis_sim.record.attention import LayerInput, run_pass
from oasis_sim.record.backend import RecordedModel

_TRIED = (0, 37)
"""Positions at which one token's keys must be the same once they are turned back."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turn a layer's keys [H, S, d] by their positions, and back; cos and sin [S, d]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, model: RecordedModel, layer: int, positions: Tensor) -> Rotation:
        """Ask the model for a layer's angles; raise InputError when it has none to ask for."""
        rotary = getattr(model.module.get_decoder(), "rotary_emb", None)
        if rotary is None:
            raise _refused(model)
        facts: dict[str, Any] = {}
        if "layer_type" in inspect.signature(rotary.forward).parameters:
            config = model.module.config.get_text_config(decoder=True)
            facts["layer_type"] = config.layer_types[layer]
        cos, sin = rotary(torch.zeros(1), positions[None], **facts)
        return cls(cos[0], sin[0])

    def forward(self, keys: Tensor) -> Tensor:
        """Return rotated keys."""
        return keys * self.cos + _half_turned(keys) * self.sin

    def back(self, keys: Tensor) -> Tensor:
        """Return keys as they were before their rotation."""
        return keys * self.cos - _half_turned(keys) * self.sin


def _half_turned(keys: Tensor) -> Tensor:
    first, second = keys.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def low_rank_keys(model: RecordedModel, start: Start, rank: int) -> Mapping[int, Tensor]:
    """Return the prompt's keys as factors of a rank over all KV heads give them, by layer.

    [H, S, d] each, of full-attention layers. Raises InputError for a model whose keys cannot be
    turned back.
    """
    check_rotation(model, start.full_layers)
    positions = torch.arange(len(start.prompt))
    found = {}
    for layer in start.full_layers:
        rotation = Rotation.of(model, layer, positions)
        keys = rotation.back(start.store.keys(layer)[:, : len(positions)].float())
        heads, tokens, dim = keys.shape
        flat = keys.transpose(0, 1).reshape(tokens, heads * dim).double()
        axes = torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -rank:]
        near = (flat @ axes @ axes.T).float().view(tokens, heads, dim).transpose(0, 1)
        found[layer] = rotation.forward(near)
    return found


def check_rotation(model: RecordedModel, layers: tuple[int, ...]) -> None:
    """Raise InputError unless one token's keys, turned back, do not depend on its position."""
    seen: dict[int, Tensor] = {}

    class Alone:
        """Let every row attend itself alone."""

        def attend(self, inputs: LayerInput) -> Tensor:
            seen[inputs.layer] = inputs.key.float()
            group = inputs.query.shape[0] // inputs.value.shape[0]
            return inputs.value.repeat_interleave(group, dim=0)

    positions = torch.tensor(_TRIED)
    run_pass(model.module, torch.ones(len(_TRIED), dtype=torch.long), positions, Alone())
    for layer in layers:
        rotation = Rotation.of(model, layer, positions)
        if rotation.cos.shape[-1] != seen[layer].shape[-1]:
            raise _refused(model)  # a part of each head is rotated
        first, second = rotation.back(seen[layer]).unbind(dim=1)
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-3 * float(first.abs().max())):
            raise _refused(model)


def _refused(model: RecordedModel) -> InputError:
    return InputError(
        "its keys cannot be turned back to what they were before their rotation",
        file=model.file,
        field="key_rank",
        fix="use a model with rotary embedding of whole heads, or a scheme without key_rank",
    )
