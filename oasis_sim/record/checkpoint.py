"""Keep a recording's finished parts on disk, so that it goes on after an interruption.

A part is a named set of tensors in a safetensors file, written beside its place and renamed. Parts
hold what was computed, bit for bit: a recording that goes on from them gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from oasis_sim.errors import InputError
from oasis_sim.fileio import load_json, printable, write_atomic

Part = dict[str, Tensor]

_IDENTITY = "recording.json"
_SUFFIX = ".part.safetensors"


class Parts:
    """Keep nothing: every part is computed."""

    def get(self, name: str, compute: Callable[[], Part]) -> Part:
        """Return a part, computed or as it was kept."""
        del name
        return compute()

    def remove(self) -> None:
        """Delete nothing."""


class FolderParts(Parts):
    """Keep parts in a folder that belongs to one recording."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open or begin a folder; ``identity`` is a JSON object that says which recording it is.

        Raises InputError when the folder is another recording's or cannot be used.
        """
        self._folder = folder
        shown = printable(folder)
        mark = folder / _IDENTITY
        if mark.exists():
            if load_json(mark).value != json.loads(json.dumps(identity)):
                raise InputError(
                    "is the checkpoint of another recording",
                    file=shown,
                    fix="repeat the command that began it, or name another folder",
                )
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            strange = any(folder.iterdir())
        except OSError as error:
            raise InputError(
                f"cannot be used ({error.strerror})", file=shown, fix="name another folder"
            ) from None
        if strange:
            raise InputError(
                "is neither empty nor a checkpoint", file=shown, fix="name another folder"
            )
        write_atomic(mark, json.dumps(identity, indent=2) + "\n")

    def get(self, name: str, compute: Callable[[], Part]) -> Part:
        """Return a part from the folder, or compute it and keep it there.

        Raises InputError for a damaged part.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load, save

        path = self._folder / f"{name}{_SUFFIX}"
        if not path.exists():
            part = compute()
            kept = {key: value.detach().cpu().contiguous() for key, value in part.items()}
            write_atomic(path, save(kept))
            return part
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            problem = printable(str(error), 120)
            raise InputError(
                f"is a damaged part of a checkpoint ({problem})",
                file=printable(path),
                fix="delete the file: it is computed again",
            ) from None

    def remove(self) -> None:
        """Delete the parts and the folder when nothing else is in it."""
        for path in self._folder.glob(f"*{_SUFFIX}"):
            path.unlink()
        (self._folder / _IDENTITY).unlink()
        if not any(self._folder.iterdir()):
            self._folder.rmdir()
