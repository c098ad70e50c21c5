"""Load a real model for recording: a local Hugging Face folder or a GGUF file.

torch and transformers are imported here, when a model is asked for, and nothing is ever fetched
from a network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_sim.errors import GpuUnavailable, InputError, UsageError
from oasis_sim.fileio import printable
from oasis_sim.record.place import ModelPlace
from oasis_sim.record.supported import check_attention

DTYPES = ("float32", "bfloat16")
UNSTATED = "not stated"
_INSTALL = "pip install -e '.[record]'"
_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?", re.ASCII)


@dataclass(frozen=True)
class RecordedModel:
    """Hold a loaded model, its tokenizer, its shape and the identity of its files."""

    module: Any  # transformers.PreTrainedModel
    tokenizer: Any
    name: str
    file: str
    sha256: str
    tokenizer_sha256: str
    licence: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    end_tokens: tuple[int, ...]
    dtype: str
    device: str

    def header(self) -> dict[str, Any]:
        """Return the trace header's ``model``."""
        return {
            "name": self.name,
            "layers": self.layers,
            "kv_heads": self.kv_heads,
            "query_heads": self.query_heads,
            "head_dim": self.head_dim,
            "vocab": self.vocab,
            "file": self.file,
            "sha256": self.sha256,
            "tokenizer_sha256": self.tokenizer_sha256,
            "licence": self.licence,
            "dtype": self.dtype,
        }


def require_backend(gguf: bool) -> None:
    """Raise UsageError that names the pip extra when a needed package is missing or broken."""
    needed = ["torch", "transformers", *(["gguf", "accelerate"] if gguf else [])]
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"recording needs {', '.join(missing)}: {_INSTALL}")
    for package in needed:
        try:
            importlib.import_module(package)
        except ImportError as error:
            problem = printable(str(error).split("\n")[0], 200)
            raise UsageError(f"{package} cannot be imported ({problem}): {_INSTALL}") from None


def load_recorded_model(
    path: str | Path,
    *,
    dtype: str = "float32",
    threads: int = 1,
    name: str | None = None,
    device: str = "cpu",
    licence: str = UNSTATED,
) -> RecordedModel:
    """Load a model from a folder (config.json, safetensors, tokenizer) or a GGUF file.

    ``threads`` sets torch's threads for the process; ``device`` is ``cpu``, ``cuda`` or
    ``cuda:N``. Raises InputError for what is no such model, or one whose attention cannot be
    recorded; UsageError when torch or transformers is missing; GpuUnavailable without the GPU.
    """
    if dtype not in DTYPES:
        known = " or ".join(DTYPES)
        raise InputError(f"unknown dtype {dtype!r}", field="dtype", fix=f"use {known}")
    if not 1 <= threads <= 1024:
        raise InputError(f"{threads} is out of range", field="threads", fix="use 1 to 1024")
    place = ModelPlace.of(Path(path))
    require_backend(place.gguf is not None)
    check_device(device)
    # The loaders ask a model hub about files that are missing here unless they are told not to.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(threads)
    module, tokenizer = _load(place, getattr(torch, dtype))
    shape = _shape(module.config, place.shown)
    return RecordedModel(
        module=module.eval().to(device),
        tokenizer=tokenizer,
        name=printable(name or place.stem),
        file=printable(place.path.name),
        sha256=place.sha256(),
        tokenizer_sha256=vocabulary_sha256(tokenizer),
        licence=printable(licence),
        **shape,
        end_tokens=_end_tokens(module, tokenizer),
        dtype=dtype,
        device=device,
    )


def _shape(whole: Any, shown: str) -> dict[str, int]:
    """Return the numbers of a loaded model's configuration.

    Raises InputError for a model that cannot be recorded, or whose layers differ in shape.
    """
    config = whole.get_text_config(decoder=True)
    try:
        query_heads = int(getattr(config, "num_attention_heads", None) or 0)
        facts = {**whole.to_dict(), **config.to_dict(), "num_attention_heads": query_heads}
        check_attention(facts, shown)
        return {
            "layers": int(config.num_hidden_layers),
            "query_heads": query_heads,
            "kv_heads": int(getattr(config, "num_key_value_heads", None) or query_heads),
            "head_dim": int(getattr(config, "head_dim", None) or config.hidden_size // query_heads),
            "vocab": int(config.vocab_size),
            "max_positions": int(config.max_position_embeddings),
        }
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises its own kinds here
        problem = printable(str(error).strip().split("\n")[0], 120)
        raise InputError(
            f"its configuration does not give one shape for all layers ({problem})",
            file=shown,
            field="model_type",
        ) from None


def check_device(device: str) -> None:
    """Raise InputError for what is no device, GpuUnavailable for a GPU that is not here."""
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise InputError(
            f"unknown device {device[:40]!r}", field="device", fix="use cpu, cuda or cuda:N"
        )
    if device == "cpu":
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(match[1] or 0) >= count:
        raise GpuUnavailable(f"no GPU {device}: PyTorch sees {count} NVIDIA GPUs; use --device cpu")


def vocabulary_sha256(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's vocabulary: JSON of its tokens and ids, by id."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(json.dumps(entries, ensure_ascii=True).encode()).hexdigest()


def _load(place: ModelPlace, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from oasis_sim.record.attention import ATTENTION_NAME, register_attention
    from oasis_sim.record.gguf_weights import load_gguf_model

    register_attention()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if place.gguf:
        options["gguf_file"] = place.gguf
    try:
        # The GGUF loader draws its own progress bars.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(place.folder, **options)
            if place.gguf:
                module = load_gguf_model(str(place.path), dtype, ATTENTION_NAME)
            else:
                module = AutoModelForCausalLM.from_pretrained(
                    place.folder,
                    dtype=dtype,
                    attn_implementation=ATTENTION_NAME,
                    use_safetensors=True,
                    **options,
                )
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the loaders raise anything on a broken file
        if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
            raise InputError(
                "hides its attention from the recorder: it attends in code of its own",
                file=place.shown,
                field="model_type",
                fix="use a model whose code calls the library's attention functions",
            ) from None
        text = printable(str(error).strip().split("\n")[0], 200)
        raise InputError(
            f"cannot be loaded as a model ({type(error).__name__}: {text})",
            file=place.shown,
            fix="check that the file is complete and that the library knows this kind of model",
        ) from None
    return module, tokenizer


def _end_tokens(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Collect the ids that end a text; a model may name none, one or several."""
    found: set[int] = set()
    config = module.config.get_text_config(decoder=True)
    generation = getattr(module, "generation_config", None)
    for owner in (config, generation, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        for token in ids if isinstance(ids, list | tuple) else [ids]:
            if isinstance(token, int) and 0 <= token < int(config.vocab_size):
                found.add(token)
    return tuple(sorted(found))
