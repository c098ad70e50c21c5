"""Load a real model for recording: a local Hugging Face folder or a GGUF file.

torch and transformers are imported here, when a model is asked for, and nothing is ever fetched
from a network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import load_json, open_regular, printable
from oasis_sim.units import MIB

SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
DTYPES = ("float32", "bfloat16")
ATTENTION_NAME = "oasis_record"
_GGUF_MAGIC = b"GGUF"
_HASH_BYTES = MIB
_INSTALL = "pip install 'oasis-sim[record]'"


@dataclass(frozen=True)
class RecordedModel:
    """Hold a loaded model, its tokenizer, its shape and the identity of its files."""

    module: Any  # transformers.PreTrainedModel
    tokenizer: Any
    name: str
    file: str
    sha256: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    end_tokens: tuple[int, ...]
    dtype: str

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
    path: str | Path, *, dtype: str = "float32", threads: int = 1, name: str | None = None
) -> RecordedModel:
    """Load a model from a folder (config.json, safetensors, tokenizer) or a GGUF file.

    ``threads`` sets torch's threads for the process. Raises InputError for what is no such model,
    or one whose attention cannot be recorded; UsageError when torch or transformers is missing.
    """
    if dtype not in DTYPES:
        known = " or ".join(DTYPES)
        raise InputError(f"unknown dtype {dtype!r}", field="dtype", fix=f"use {known}")
    if not 1 <= threads <= 1024:
        raise InputError(f"{threads} is out of range", field="threads", fix="use 1 to 1024")
    place = _ModelPlace.of(Path(path))
    require_backend(place.gguf is not None)
    # The loaders ask a model hub about files that are missing here unless they are told not to.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(threads)
    module, tokenizer = _load(place, getattr(torch, dtype))
    config = module.config
    check_attention(_facts(config.to_dict()), place.shown)
    query_heads = int(config.num_attention_heads)
    return RecordedModel(
        module=module.eval(),
        tokenizer=tokenizer,
        name=printable(name or place.stem),
        file=printable(place.path.name),
        sha256=place.sha256(),
        layers=int(config.num_hidden_layers),
        query_heads=query_heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or query_heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // query_heads),
        vocab=int(config.vocab_size),
        max_positions=int(config.max_position_embeddings),
        end_tokens=_end_tokens(module, tokenizer),
        dtype=dtype,
    )


def check_attention(facts: dict[str, Any], shown: str) -> None:
    """Raise InputError, with the reason, for a model whose attention cannot be recorded."""
    kind = str(facts.get("model_type"))
    reason = None
    if facts.get("kv_lora_rank"):
        reason = "uses multi-head latent attention (MLA), which keeps no keys per KV head"
    elif facts.get("is_encoder_decoder"):
        reason = "is an encoder-decoder model; only decoder-only models have one growing KV cache"
    elif kind not in SUPPORTED_TYPES:
        reason = f"model type {printable(kind, 40)!r} is not supported"
    if reason:
        types = ", ".join(SUPPORTED_TYPES)
        raise InputError(reason, file=shown, field="model_type", fix=f"use one of: {types}")


@dataclass(frozen=True)
class _ModelPlace:
    """Say where a model lies: its folder, and its file name when it is a GGUF file."""

    path: Path
    gguf: str | None

    @classmethod
    def of(cls, path: Path) -> _ModelPlace:
        """Look at a path; raise InputError when no model can be there."""
        shown = printable(path)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise InputError(
                    "holds no config.json", file=shown, fix="name a model folder or a .gguf file"
                )
            facts = load_json(path / "config.json")
            check_attention(_facts(facts.value), shown)
            if not list(path.glob("*.safetensors")):
                raise InputError(
                    "holds no .safetensors weights", file=shown, fix="convert the model's weights"
                )
            return cls(path.resolve(), None)
        with open_regular(path) as file:
            if file.read(4) != _GGUF_MAGIC:
                raise InputError(
                    "is not a GGUF file", file=shown, fix="name a .gguf file or a model folder"
                )
        return cls(path.resolve(), path.resolve().name)

    @property
    def shown(self) -> str:
        return printable(self.path)

    @property
    def folder(self) -> str:
        return str(self.path.parent if self.gguf else self.path)

    @property
    def stem(self) -> str:
        return self.path.stem if self.gguf else self.path.name

    def sha256(self) -> str:
        """Return the file's SHA-256; of a folder, that of its ``sha256  name`` lines, sorted."""
        if self.gguf:
            return _file_sha256(self.path)
        files = [self.path / "config.json", *sorted(self.path.glob("*.safetensors"))]
        lines = "".join(f"{_file_sha256(file)}  {file.name}\n" for file in files)
        return hashlib.sha256(lines.encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _facts(config: object) -> dict[str, Any]:
    return config if isinstance(config, dict) else {}


def _load(place: _ModelPlace, dtype: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from oasis_sim.record.attention import register_attention

    register_attention()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if place.gguf:
        options["gguf_file"] = place.gguf
    weights = {"dtype": dtype, "attn_implementation": ATTENTION_NAME}
    if not place.gguf:
        weights["use_safetensors"] = True
    try:
        # The GGUF loader draws its own progress bars.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(place.folder, **options)
            module = AutoModelForCausalLM.from_pretrained(place.folder, **options, **weights)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the loaders raise anything on a broken file
        text = printable(str(error).strip().split("\n")[0], 200)
        raise InputError(
            f"cannot be loaded as a model ({type(error).__name__}: {text})",
            file=place.shown,
            fix="check that the file is complete",
        ) from None
    return module, tokenizer


def _end_tokens(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Collect the ids that end a text; a model may name none, one or several."""
    found: set[int] = set()
    generation = getattr(module, "generation_config", None)
    for owner in (module.config, generation, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        for token in ids if isinstance(ids, list | tuple) else [ids]:
            if isinstance(token, int) and 0 <= token < int(module.config.vocab_size):
                found.add(token)
    return tuple(sorted(found))
