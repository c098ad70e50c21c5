"""Load an EAGLE-3 head from its folder, and say clearly what of it does not fit."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.fileio import printable
from oasis_sim.record.backend import RecordedModel
from oasis_sim.record.eagle import EagleHead, EagleShape
from oasis_sim.record.eagle_config import (
    build_rotary,
    find_activation,
    load_facts,
    read_shape,
)
from oasis_sim.record.place import folder_sha256

_NEEDED = (
    "fc.weight",
    "norm.weight",
    *(f"midlayer.{name}.weight" for name in ("input_layernorm", "hidden_norm")),
    "midlayer.post_attention_layernorm.weight",
    *(f"midlayer.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
)


def load_eagle_head(folder: Path, model: RecordedModel) -> tuple[EagleHead, str]:
    """Load a head for a target model; return it and the SHA-256 of its files.

    The folder holds config.json and ``*.safetensors`` or ``pytorch_model.bin`` (read without
    running code). Raises InputError for what is no such head or does not fit the target.
    """
    shown, config = printable(folder), folder / "config.json"
    if not config.is_file():
        raise InputError(
            "holds no config.json", file=shown, fix="name a folder with an EAGLE-3 head"
        )
    facts = load_facts(config)
    shape = read_shape(facts, model.layers, str(config))
    rotary = build_rotary(facts, shape, str(config))
    activation = find_activation(facts, str(config))
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    weights = _target_parts(_weights(files, shown), model)
    _check_weights(weights, shape, model, shown)
    dtype = getattr(torch, model.dtype)
    placed = {
        name: value.to(model.device, dtype if value.is_floating_point() else torch.int64)
        for name, value in weights.items()
    }
    head = EagleHead(shape, placed, rotary.to(model.device), activation)
    return head, folder_sha256(folder, files)


def _weights(files: list[Path], shown: str) -> dict[str, Tensor]:
    """Read weights by name, without ``model.`` and with ``midlayer`` for ``layers.0``."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not files:
        raise InputError(
            "holds no weights", file=shown, fix="add model.safetensors or pytorch_model.bin"
        )
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                found |= load_file(file)
            else:
                found |= torch.load(file, map_location="cpu", weights_only=True)
        except (SafetensorError, OSError, RuntimeError, pickle.UnpicklingError, TypeError) as error:
            problem = printable(str(error).split("\n")[0], 120)
            raise InputError(f"cannot be read ({problem})", file=printable(file)) from None
    plain = {name.removeprefix("model."): value for name, value in found.items()}
    return {name.replace("layers.0.", "midlayer."): value for name, value in plain.items()}


def _target_parts(weights: dict[str, Tensor], model: RecordedModel) -> dict[str, Tensor]:
    """Return the weights with the target's embedding and output head where they are missing."""
    module = model.module
    shared = {
        "embed_tokens.weight": module.get_input_embeddings().weight,
        "lm_head.weight": module.get_output_embeddings().weight,
    }
    return {**shared, **weights}


def _check_weights(
    weights: Mapping[str, Tensor], shape: EagleShape, model: RecordedModel, shown: str
) -> None:
    """Raise InputError for missing weights and for sizes that do not fit."""
    missing = [name for name in _NEEDED if name not in weights]
    if missing:
        raise InputError(
            f"lacks the weights {', '.join(missing[:4])}", file=shown, fix="use an EAGLE-3 head"
        )
    target = model.module.get_input_embeddings().weight.shape[1]
    hidden, rows = weights["norm.weight"].shape[0], shape.query_heads * shape.head_dim
    vocab = weights["lm_head.weight"].shape[0]
    expected = {
        "fc.weight": (hidden, 3 * target),
        "embed_tokens.weight": (weights["embed_tokens.weight"].shape[0], hidden),
        "lm_head.weight": (vocab, hidden),
        "midlayer.self_attn.q_proj.weight": (rows, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, rows),
        **({"d2t": (vocab,)} if "d2t" in weights else {}),
    }
    for name, size in expected.items():
        found = tuple(weights[name].shape)
        if found != size:
            raise InputError(
                f"weight {name} is {found}, not {size}",
                file=shown,
                fix="use the head that was trained for this model",
            )
    ids = torch.arange(vocab) + weights.get("d2t", torch.zeros(vocab, dtype=torch.int64))
    if int(ids.min()) < 0 or int(ids.max()) >= model.vocab:
        raise InputError("drafts tokens that the model lacks", file=shown, field="d2t")
