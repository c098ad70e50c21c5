"""Files of a run directory against its manifest: a missing, edited or exchanged one is found."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio.atomic import inside
from oasis_sim.fileio.document import load_json
from oasis_sim.fileio.owned import MANIFEST_NAME
from oasis_sim.fileio.streams import content_chunks
from oasis_sim.fileio.text import printable
from oasis_sim.units import GIB

FIX = "run it again"
LISTED_CAP_BYTES = 4 * GIB
"""More than any file of a run; keeps an endless one from being read."""


def check_whole_run(directory: Path, *names: str) -> None:
    """Raise InputError unless a run is whole and unchanged: the one rule of all its readers.

    There must be a manifest, it must list `names`, and every file that it lists must be there
    with its content: a run without it was stopped, or something was taken out or edited since.
    """
    listed = _manifest(directory)
    for each in dict.fromkeys((*names, *listed)):
        _check(directory, each, listed)


def _manifest(directory: Path) -> Mapping[str, Any]:
    """Return the entries of the manifest by name."""
    path = inside(directory, MANIFEST_NAME)
    if not path.exists():
        problem = f"has no {MANIFEST_NAME}, so the run is not complete"
        raise InputError(problem, file=printable(directory), fix=FIX)
    document = load_json(path).value
    listed = document.get("files") if isinstance(document, dict) else None
    return listed if isinstance(listed, dict) else {}


def _check(directory: Path, name: str, listed: Mapping[str, Any]) -> None:
    entry = listed.get(name)
    wanted = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(wanted, str):
        raise InputError(
            f"does not list {printable(name, 60)}",
            file=printable(inside(directory, MANIFEST_NAME)),
            fix=FIX,
        )
    path = inside(directory, name)
    if not path.exists():
        problem = f"no such file, but {MANIFEST_NAME} lists it, so the run is not complete"
        raise InputError(problem, file=printable(path), fix=FIX)
    digest = hashlib.sha256()
    for chunk in content_chunks(path, LISTED_CAP_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != wanted:
        raise InputError(
            f"is not the file that {MANIFEST_NAME} lists", file=printable(path), fix=FIX
        )
