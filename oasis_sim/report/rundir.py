"""Read the summary of a finished run back from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import check_listed, inside, load_json
from oasis_sim.metrics.summary import SCHEMA_VERSION
from oasis_sim.report.directory import SUMMARY_NAME

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
