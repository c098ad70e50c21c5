"""When, where and from which source text a measurement was taken."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import subprocess
from pathlib import Path

from gpu_exec.device import GpuState
from gpu_exec.validate import Origin
from oasis_sim.text import plain

COMMIT_VARIABLE = "OASIS_COMMIT"


def measurement_origin(gpus: tuple[GpuState, ...], command: str) -> Origin:
    """Return card, driver, date (UTC), command line and commit of a measurement."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Origin(
        gpu=gpus[0].name if gpus else "none",
        driver=gpus[0].driver if gpus else "none",
        date=now,
        command=plain(command),
        commit=source_commit(),
    )


def network_origin(command: str) -> dict[str, str]:
    """Return date (UTC), command line, commit and processors of a measurement without a GPU."""
    processors = f"{os.cpu_count()} x {platform.machine()}"
    found = measurement_origin((), command)
    return {
        "date": found.date,
        "command": found.command,
        "commit": found.commit,
        "machine": processors,
        "python": platform.python_version(),
    }


def source_commit() -> str:
    """Return the commit of the source tree, marked when files were changed, or "unknown".

    The variable OASIS_COMMIT names it where a copy without history runs.
    """
    named = os.environ.get(COMMIT_VARIABLE, "")
    if named:
        return plain(named)
    here = Path(__file__).resolve().parent
    head = _git(here, "rev-parse", "HEAD")
    if not head:
        return "unknown"
    changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    return f"{head} with changes" if changed else head


def _git(where: Path, *arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        done = subprocess.run(
            [git, "-C", str(where), *arguments], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
