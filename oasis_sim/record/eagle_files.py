"""Load an EAGLE-3 head from its folder, and say clearly what of it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

_RENAMED = {"layers.0.": "midlayer.", "draft_id_to_target_id": "d2t"}
_FIX = "use an EAGLE-3 head of one decoder layer of Llama's kind"
_APART = {"d2t", "t2d", "midlayer.self_attn.rotary_emb.inv_freq"}


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
    for name, value in placed.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            problem = f"weight {name} holds numbers that {model.dtype} cannot: NaN or infinity"
            raise InputError(problem, file=shown, fix="use the files as they were published")
    head = EagleHead(shape, placed, rotary.to(model.device), activation)
    return head, folder_sha256(folder, files)


def _weights(files: list[Path], shown: str) -> dict[str, Tensor]:
    """Read weights by name, without ``model.`` and with ``midlayer`` for ``layers.0``."""
    if not files:
        raise InputError(
            "holds no weights", file=shown, fix="add model.safetensors or pytorch_model.bin"
        )
    found: dict[str, Tensor] = {}
    for file in files:
        for name, value in _read(file).items():
            plain = _plain_name(name)
            if plain in found:
                problem = f"holds the weight {printable(plain, 80)} a second time"
                raise InputError(problem, file=printable(file), fix="keep one of them")
            found[plain] = value
    return found


def _read(file: Path) -> dict[str, Tensor]:
    """Return a file's tensors by name; raise InputError for a broken file and anything else."""
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the loaders raise anything on a broken file
        problem = printable(f"{type(error).__name__}: {error}".split("\n")[0], 120)
        raise InputError(f"cannot be read ({problem})", file=printable(file)) from None
    if not isinstance(found, dict) or not all(map(_is_weight, found.items())):
        raise InputError("holds other things than weights", file=printable(file), fix=_FIX)
    return found


def _is_weight(item: tuple[Any, Any]) -> bool:
    """Say whether something packed is a name and a tensor of plain numbers."""
    name, value = item
    plain = isinstance(value, Tensor) and not (value.is_meta or value.is_quantized)
    return isinstance(name, str) and plain and value.layout is torch.strided


def _plain_name(name: str) -> str:
    """Return a weight's name as SafeAILab's heads have it."""
    name = name.removeprefix("model.")
    for other, plain in _RENAMED.items():
        name = name.replace(other, plain)
    return name


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
    """Raise InputError for missing weights, those of another kind of head, and wrong sizes."""
    sizes = _sizes(weights, shape, model)
    missing = [name for name in sizes if name not in weights and not name.endswith(".bias")]
    if missing:
        raise InputError(f"lacks the weights {', '.join(missing[:4])}", file=shown, fix=_FIX)
    unknown = sorted(set(weights) - set(sizes) - _APART)
    if unknown:
        names = printable(", ".join(unknown[:4]), 200)
        raise InputError(f"has weights that are not read: {names}", file=shown, fix=_FIX)
    for name, size in sizes.items():
        found = tuple(weights[name].shape) if name in weights else size
        if found != size:
            raise InputError(
                f"weight {name} is {found}, not {size}",
                file=shown,
                fix="use the head that was trained for this model",
            )
        if name in weights and not weights[name].is_floating_point():
            problem = f"weight {name} holds {weights[name].dtype}, not floating-point numbers"
            raise InputError(problem, file=shown, fix="use the head's unquantised weights")
    _check_vocabulary(weights, shape, model, shown)


def _sizes(
    weights: Mapping[str, Tensor], shape: EagleShape, model: RecordedModel
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the weights that belong to a head; biases may be left out."""
    target = model.module.get_input_embeddings().weight.shape[1]
    joined = len(shape.taps) * target
    hidden = _length(weights, "norm.weight")
    inner = _length(weights, "midlayer.mlp.gate_proj.weight")
    rows, kv_rows = (heads * shape.head_dim for heads in (shape.query_heads, shape.kv_heads))
    linears = {
        "fc": (hidden, joined),
        "midlayer.self_attn.q_proj": (rows, 2 * hidden),
        "midlayer.self_attn.k_proj": (kv_rows, 2 * hidden),
        "midlayer.self_attn.v_proj": (kv_rows, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, rows),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (_length(weights, "lm_head.weight"), hidden),
    }
    names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    norms = {"norm": hidden, **{f"midlayer.{name}": hidden for name in names}}
    if shape.norm_before_fc:
        norms["input_norm"] = joined
    if shape.fc_norm:
        norms |= {f"fc_norm.{i}": target for i in range(len(shape.taps))}
    return {
        "embed_tokens.weight": (_length(weights, "embed_tokens.weight"), hidden),
        **{f"{name}.weight": (size,) for name, size in norms.items()},
        **{f"{name}.weight": size for name, size in linears.items()},
        **{f"{name}.bias": size[:1] for name, size in linears.items()},
    }


def _length(weights: Mapping[str, Tensor], name: str) -> int:
    """Return the first size of a weight, 0 for one that is missing or a single number."""
    return next(iter(weights[name].shape), 0) if name in weights else 0


def _check_vocabulary(
    weights: Mapping[str, Tensor], shape: EagleShape, model: RecordedModel, shown: str
) -> None:
    """Raise InputError when the draft's tokens are not tokens of the model."""
    vocab, known = (_length(weights, f"{name}.weight") for name in ("lm_head", "embed_tokens"))
    offsets, field, problem = weights.get("d2t"), "d2t", None
    if vocab == 0:
        field, problem = "lm_head", "holds no tokens"
    elif shape.draft_vocab not in (None, vocab):
        field, problem = "draft_vocab_size", f"is {shape.draft_vocab}, lm_head has {vocab} rows"
    elif known < model.vocab:
        field, problem = "embed_tokens", f"holds {known} of the model's {model.vocab} tokens"
    elif offsets is not None:
        problem = _offsets_problem(offsets, vocab, weights.get("t2d"), model.vocab)
    elif vocab not in (model.vocab, known):
        problem = f"is missing, with {vocab} draft tokens for the model's {model.vocab}"
    if problem:
        fix = "use the head that was trained for this model"
        raise InputError(problem, file=shown, field=field, fix=fix)


def _offsets_problem(offsets: Tensor, drafts: int, chosen: Tensor | None, vocab: int) -> str | None:
    """Return what is wrong with ``d2t``: offsets [draft vocabulary] to the target's ids.

    ``t2d`` [target vocabulary] says which of the target's tokens the draft has; heads of the whole
    vocabulary leave it empty.
    """
    if offsets.is_floating_point() or tuple(offsets.shape) != (drafts,):
        return f"is no list of {drafts} whole numbers"
    ids = torch.arange(drafts) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        return "drafts tokens that the model lacks"
    if len(ids.unique()) < drafts:
        return "names a token twice (it holds offsets: d2t[i] + i is the model's token)"
    if chosen is None or chosen.ndim != 1 or not bool(chosen.any()):
        return None
    if not torch.equal(chosen.nonzero()[:, 0], ids.sort().values):
        return "names other tokens than t2d (it holds offsets: d2t[i] + i is the model's token)"
    return None
