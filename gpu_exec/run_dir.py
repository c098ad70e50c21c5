"""Read the schedule of a run directory, and only the one that the run wrote."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from oasis_sim.engine.schedule import CAP_BYTES, Schedule
from oasis_sim.errors import InputError
from oasis_sim.fileio import MANIFEST_NAME, content_chunks, inside, load_json

SCHEDULE_NAME = "schedule.npz"


def load_run_schedule(run_dir: str | Path) -> Schedule:
    """Load the schedule of a run directory; raises InputError when there is none."""
    directory = Path(run_dir)
    if not directory.is_dir():
        raise InputError("is not a run directory", file=directory, fix="give the --out of a run")
    path = inside(directory, SCHEDULE_NAME)
    if not path.exists():
        raise InputError(
            f"has no {SCHEDULE_NAME}",
            file=directory,
            fix="this run moved nothing that can be replayed; run again with an offloading scheme",
        )
    _check_manifest(directory, path)
    return Schedule.load(path)


def _check_manifest(directory: Path, schedule: Path) -> None:
    """Refuse a schedule that differs from the one in the manifest; without a manifest, take it."""
    manifest = inside(directory, MANIFEST_NAME)
    if not manifest.exists():
        return
    document = load_json(manifest).value
    listed = _at(_at(_at(document, "files"), SCHEDULE_NAME), "sha256")
    if not isinstance(listed, str):
        raise InputError(f"does not list {SCHEDULE_NAME}", file=manifest, fix="run again")
    digest = hashlib.sha256()
    for chunk in content_chunks(schedule, CAP_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != listed:
        raise InputError(
            f"is not the file that {MANIFEST_NAME} lists", file=schedule, fix="run again"
        )


def _at(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
