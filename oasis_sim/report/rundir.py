"""Read the summary of a finished run back from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import check_whole_run, inside, is_number, load_json, printable
from oasis_sim.metrics.summary import SCHEMA_VERSION
from oasis_sim.report.csvfile import flatten
from oasis_sim.report.directory import CONFIG_NAME, SUMMARY_NAME

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
FLAGS = ("offload", "p99_has_too_few_samples", "prediction_inline")
"""Keys whose values are true or false; a boolean anywhere else stands where a number belongs."""


def read_summary(run_dir: str | Path) -> Mapping[str, Any]:
    """Return the mapping of `summary.json` of a run directory.

    Raises InputError when there is none, or when it is not a summary of this version.
    """
    directory = Path(run_dir)
    path = inside(directory, SUMMARY_NAME)
    if not path.is_file():
        raise InputError(f"has no {SUMMARY_NAME}", file=directory, fix="give the --out of a run")
    check_whole_run(directory, SUMMARY_NAME, CONFIG_NAME)
    summary = load_json(path).value
    if not isinstance(summary, dict) or summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"is not a summary of version {SCHEMA_VERSION}", file=path, fix="run again"
        )
    missing = [part for part in PARTS if not isinstance(summary.get(part), dict)]
    if missing:
        raise InputError(f"has no {', '.join(missing)}", file=path, fix="run again")
    _check_leaves(summary, path)
    return summary


def _check_leaves(summary: Mapping[str, Any], path: Path) -> None:
    """Raise InputError for a value of a kind that no summary holds, with its dotted path."""
    notes = summary.get("notes")
    if not isinstance(notes, list) or not all(isinstance(each, str) for each in notes):
        raise InputError("is no list of texts", file=path, field="notes", fix="run again")
    for name, value in flatten(summary):
        key = name.rpartition(".")[2]
        good = isinstance(value, str) or value is None or is_number(value)
        if isinstance(value, bool) is not (key in FLAGS) or not (good or key in FLAGS):
            wanted = "true or false" if key in FLAGS else "a number, a text or null"
            shown = printable(value, 40)
            problem = f"is {shown}, where {wanted} belongs"
            raise InputError(problem, file=path, field=printable(name, 120), fix="run again")
