"""Tell a run directory of this program from everything else that a user may keep."""

from __future__ import annotations

import json
from pathlib import Path

from oasis_sim.fileio.text import printable

MANIFEST_NAME = "manifest.json"
"""The file that lists what a run wrote; a directory without it is never replaced."""
RUN_FORMAT = "oasis-run"
LOG_NAME = "run.log"
REPLAY_NAME = "replay.json"
"""Files of a run that its manifest does not list: they differ between equal runs."""


def listed_files(directory: Path) -> frozenset[str] | None:
    """Return the names that a run directory may hold; None when its manifest is not a run's."""
    path = directory / MANIFEST_NAME
    try:
        if not path.is_file() or path.is_symlink():
            return None
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != RUN_FORMAT:
        return None
    files = manifest.get("files")
    if not isinstance(files, dict):
        return None
    return frozenset({*files, MANIFEST_NAME, LOG_NAME, REPLAY_NAME})


def in_the_way(directory: Path) -> str | None:
    """Say why a directory must not be replaced; None when it holds a run and nothing else.

    May raise OSError when the directory cannot be read.
    """
    listed = listed_files(directory)
    if listed is None:
        return f"holds no {MANIFEST_NAME} of a run, so it was not written by this program"
    for entry in sorted(directory.iterdir()):
        shown = printable(entry.name, 60)
        if entry.name not in listed:
            return f"holds {shown}, which is not part of the run"
        if entry.is_symlink() or not entry.is_file():
            return f"holds {shown}, which is a directory or link and not part of the run"
    return None
