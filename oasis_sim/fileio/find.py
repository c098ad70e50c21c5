"""Find an input by name: beside the user first, then among the shipped data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import oasis_sim
from oasis_sim.errors import InputError
from oasis_sim.fileio.mistakes import did_you_mean
from oasis_sim.fileio.text import printable


@dataclass(frozen=True)
class _Shelf:
    """Say where one kind of input is shipped and how its file names end."""

    noun: str
    package: str
    folder: str
    suffixes: tuple[str, ...]


_COMPRESSED = ("", ".gz", ".zst")
_SHELVES: dict[str, _Shelf] = {
    "profile": _Shelf("hardware profile", "oasis_sim", "hw_profiles", (".yaml", ".yml")),
    "trace": _Shelf("trace", "oasis_sim", "traces", (".jsonl", ".npz")),
    "model": _Shelf("model", "oasis_sim.model", "configs", (".json",)),
    "scheme": _Shelf("scheme", "oasis_sim.scheme", "presets", (".yaml", ".yml")),
    "network": _Shelf("network profile", "oasis_sim.network", "presets", (".yaml", ".yml")),
}


def find_input(name: str, kind: str) -> Path:
    """Return the path of an input of a kind, such as ``profile``, ``trace`` or ``network``.

    A name with a path separator is a path. Otherwise a file of that name in the current
    directory comes first, then the shipped data; both also find the name with the kind's
    suffix and with .gz or .zst. Raise InputError, with the nearest name, for an unknown one.
    """
    shelf = _SHELVES[kind]
    if not name or "\0" in name:
        raise InputError("the name is empty or holds a NUL", field=shelf.noun)
    candidates = _spellings(name, shelf)
    for path in map(Path, candidates):
        if path.is_file():
            return path
    shipped = shipped_inputs(kind)
    by_file = {path.name.lower(): path for path in shipped.values()}
    if os.sep not in name:
        for candidate in candidates:
            if candidate.lower() in by_file:
                return by_file[candidate.lower()]
    if os.sep in name or os.path.lexists(name):
        return Path(name)  # opening it says what is wrong with it
    guess = did_you_mean(name, list(shipped))
    known = ", ".join(shipped) or "none"
    raise InputError(
        f"no {shelf.noun} of this name beside you or built in",
        file=printable(name),
        fix=f"built in: {known}{guess}",
    )


def shipped_inputs(kind: str) -> dict[str, Path]:
    """Return the shipped inputs of a kind by name (without suffixes), sorted."""
    shelf = _SHELVES[kind]
    folder = _folder(shelf)
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        for suffix in _endings(shelf):
            if path.name.endswith(suffix) and path.is_file():
                found.setdefault(path.name.removesuffix(suffix), path)
    return dict(sorted(found.items()))


def _endings(shelf: _Shelf) -> list[str]:
    return [suffix + packed for suffix in shelf.suffixes for packed in _COMPRESSED]


def _spellings(name: str, shelf: _Shelf) -> list[str]:
    packed = [name + ending for ending in _COMPRESSED]
    return [*packed, *(name + ending for ending in _endings(shelf))]


def _folder(shelf: _Shelf) -> Path:
    """Return the directory of shipped data that belongs to the package that is running.

    In a wheel it lies inside the package; in a checkout beside it. Another installation's data
    are found last, as when the checkout's own are not there.
    """
    package = Path(oasis_sim.__file__).parent
    inner = package.joinpath(*shelf.package.split(".")[1:], shelf.folder)
    for folder in (inner, package.parent / shelf.folder):
        if folder.is_dir():
            return folder
    return Path(str(resources.files(f"{shelf.package}.{shelf.folder}")))
