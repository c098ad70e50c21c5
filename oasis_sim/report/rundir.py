"""Read the summary of a finished run back from its directory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import MANIFEST_NAME, content_chunks, inside, load_json
from oasis_sim.metrics.summary import SCHEMA_VERSION
from oasis_sim.report.directory import SUMMARY_NAME
from oasis_sim.units import MIB

SUMMARY_CAP_BYTES = 64 * MIB

PARTS = (
    "scenario",
    "throughput",
    "latency",
    "steps",
    "stages_ms_per_step",
    "step_bound",
    "links",
    "tiers",
    "residency",
    "quality",
    "requests",
    "bounds",
)


def read_summary(run_dir: str | Path) -> Mapping[str, Any]:
    """Return the mapping of `summary.json` of a run directory.

    Raises InputError when there is none, or when it is not a summary of this version.
    """
    directory = Path(run_dir)
    path = inside(directory, SUMMARY_NAME)
    if not path.is_file():
        raise InputError(f"has no {SUMMARY_NAME}", file=directory, fix="give the --out of a run")
    check_listed(directory, SUMMARY_NAME)
    summary = load_json(path).value
    if not isinstance(summary, dict) or summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"is not a summary of version {SCHEMA_VERSION}", file=path, fix="run again"
        )
    missing = [part for part in PARTS if not isinstance(summary.get(part), dict)]
    if missing:
        raise InputError(f"has no {', '.join(missing)}", file=path, fix="run again")
    return summary


def check_listed(directory: Path, name: str) -> None:
    """Raise InputError unless a file is the one that the manifest lists; without one, take it."""
    manifest = inside(directory, MANIFEST_NAME)
    if not manifest.exists():
        return
    try:
        listed = load_json(manifest).value["files"][name]["sha256"]
    except (KeyError, TypeError):
        raise InputError(f"does not list {name}", file=manifest, fix="run again") from None
    path = inside(directory, name)
    digest = hashlib.sha256()
    for chunk in content_chunks(path, SUMMARY_CAP_BYTES):
        digest.update(chunk)
    if digest.hexdigest() != listed:
        raise InputError(f"is not the file that {MANIFEST_NAME} lists", file=path, fix="run again")
