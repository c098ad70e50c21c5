"""Where a model lies: a local Hugging Face folder or a GGUF file, and the identity of its files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import load_json, open_regular, printable
from oasis_sim.record.supported import check_attention
from oasis_sim.units import MIB

_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ModelPlace:
    """Say where a model lies: its folder, and its file name when it is a GGUF file."""

    path: Path
    gguf: str | None

    @classmethod
    def of(cls, path: Path) -> ModelPlace:
        """Look at a path; raise InputError when no model that can be recorded is there."""
        shown = printable(path)
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise InputError(
                    "holds no config.json", file=shown, fix="name a model folder or a .gguf file"
                )
            check_attention(as_facts(load_json(path / "config.json").value), shown, complete=False)
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
        """Return the path as it may be printed."""
        return printable(self.path)

    @property
    def folder(self) -> str:
        """Return the folder that the library's loaders are given."""
        return str(self.path.parent if self.gguf else self.path)

    @property
    def stem(self) -> str:
        """Return the name of the model by its place."""
        return self.path.stem if self.gguf else self.path.name

    def sha256(self) -> str:
        """Return the file's SHA-256; of a folder, that of its ``sha256  name`` lines, sorted."""
        if self.gguf:
            return file_sha256(self.path)
        return folder_sha256(self.path, sorted(self.path.glob("*.safetensors")))


def folder_sha256(folder: Path, weights: list[Path]) -> str:
    """Return the SHA-256 of the lines ``sha256  name`` of config.json and the weight files."""
    files = [folder / "config.json", *weights]
    lines = "".join(f"{file_sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(MIB):
            digest.update(chunk)
    return digest.hexdigest()


def as_facts(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}
