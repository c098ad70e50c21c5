"""Files of a run directory against its manifest: an edited or exchanged one is found."""

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

LISTED_CAP_BYTES = 4 * GIB
"""More than any file of a run; keeps an endless one from being read."""


def check_listed(directory: Path, name: str) -> None:
    """Raise InputError unless a file is the one that the manifest lists; without one, take it."""
    listed = _manifest(directory)
    if listed is not None:
        _check(directory, name, listed)


def check_whole_run(directory: Path, name: str) -> None:
    """Raise InputError unless the manifest lists `name` and every listed file is as it says.

    Without a manifest, take what is there.
    """
    listed = _manifest(directory)
    if listed is not None:
        for each in dict.fromkeys((name, *listed)):
            _check(directory, each, listed)


def _manifest(directory: Path) -> Mapping[str, Any] | None:
    """Return the entries of the manifest by name, None where there is none."""
    path = inside(directory, MANIFEST_NAME)
    if not path.exists():
        return None
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
            fix="run again",
        )
    path = inside(directory, name)
    digest = hashlib.sha256()
    for chunk in content_chunks(path, LISTED_CAP_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != wanted:
        raise InputError(
            f"is not the file that {MANIFEST_NAME} lists", file=printable(path), fix="run again"
        )
