"""The run directory: every file of one run, written at once, its hashes last.

`run.log` alone holds what differs between two runs of one scenario (wall clock, machine); it is
left out of the manifest, so that equal scenarios give equal manifests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oasis_sim import __version__
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.engine.result import RunResult
from oasis_sim.fileio import (
    LOG_NAME,
    MANIFEST_NAME,
    RUN_FORMAT,
    AtomicDirectory,
    in_the_way,
)
from oasis_sim.metrics import (
    cluster_requests_table,
    cluster_steps_table,
    requests_table,
    steps_table,
    timeline_table,
)
from oasis_sim.report.csvfile import write_table
from oasis_sim.report.timeline import write_timeline

VERSION = 1
CONFIG_NAME = "config.yaml"
SUMMARY_NAME = "summary.json"
SCHEDULE_NAME = "schedule.npz"


def json_text(value: Any) -> str:
    """Return JSON for people and programs: indented, plain ASCII, never NaN."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_run(
    directory: Path, files: Mapping[str, bytes], log: str, *, force: bool = False
) -> None:
    """Write the files of a run, its log and its manifest, all or nothing.

    Raise UsageError when the directory is taken, InputError when it cannot be written.
    """
    with AtomicDirectory(directory, force=force) as place:
        for name, content in files.items():
            (place / name).write_bytes(content)
        (place / LOG_NAME).write_text(log, encoding="utf-8")
        (place / MANIFEST_NAME).write_text(json_text(manifest_of(files)), encoding="utf-8")


def run_files(result: RunResult, config: str, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a run that depend on its scenario alone, by name."""
    texts = {
        CONFIG_NAME: config,
        SUMMARY_NAME: json_text(summary),
        "steps.csv": write_table(steps_table(result.steps)),
        "requests.csv": write_table(requests_table(result.requests)),
        "timeline.json": write_timeline(result),
    }
    files = {name: text.encode("utf-8") for name, text in texts.items()}
    if result.schedule is not None:
        files[SCHEDULE_NAME] = result.schedule.to_bytes()
    return files


def cluster_files(
    result: ClusterResult, config: str, summary: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the files of a disaggregated run that depend on its scenario alone, by name.

    `nodes.csv` is what was sent and held over time; `timeline.json` shows the first decode node.
    `steps.csv` holds the first steps of each decode node where there are very many.
    """
    first = result.first_node()
    texts = {
        CONFIG_NAME: config,
        SUMMARY_NAME: json_text(summary),
        "steps.csv": write_table(cluster_steps_table(result)),
        "requests.csv": write_table(cluster_requests_table(result)),
        "nodes.csv": write_table(timeline_table(result)),
        "timeline.json": write_timeline(first),
    }
    return {name: text.encode("utf-8") for name, text in texts.items()}


def manifest_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest of files: size and SHA-256 of each, names sorted."""
    return {
        "format": RUN_FORMAT,
        "version": VERSION,
        "oasis_sim_version": __version__,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in sorted(files.items())
        },
    }


def holds_same_run(directory: Path, files: Mapping[str, bytes]) -> bool:
    """Tell whether a directory already holds exactly these files, byte for byte."""
    return all(_content(directory / name) == content for name, content in files.items())


def is_whole_run(directory: Path) -> bool:
    """Tell whether a directory holds one of our runs and nothing that someone else put there."""
    try:
        return in_the_way(directory) is None
    except OSError:
        return False


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None
