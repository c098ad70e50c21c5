"""The directory of a sweep: one small run directory per scenario, named by its content.

    sweep.yaml            the grid, in canonical order
    runs/KEY/             config.yaml, summary.json (or refusal.json), manifest.json, run.log
    results.csv           the table, once every point is there; until then results.partial.csv

A run directory appears at once and whole, so that a killed sweep leaves nothing truncated; what a
kill leaves behind (`.NAME.partial`) is removed by the next sweep that has the place to itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oasis_sim import __version__
from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import MANIFEST_NAME, dump_yaml, printable, write_atomic
from oasis_sim.plan.grid import Grid
from oasis_sim.plan.outcome import Outcome
from oasis_sim.report.directory import CONFIG_NAME, SUMMARY_NAME, json_text, write_run

GRID_NAME = "sweep.yaml"
REFUSAL_NAME = "refusal.json"
RUNS_NAME = "runs"
LOCK_NAME = ".lock"
LEFTOVERS = ("*.partial", "*.old")
KEY_CHARACTERS = 16


def key_of(config: str) -> str:
    """Return the name of a run: the same scenario and version have the same one."""
    return hashlib.sha256(f"{__version__}\n{config}".encode()).hexdigest()[:KEY_CHARACTERS]


class Store:
    """Keep the runs of a sweep in a directory."""

    def __init__(self, path: Path) -> None:
        """Check that the place is new, empty, or a sweep's; nothing is written yet."""
        self.path = path
        self.runs = path / RUNS_NAME
        shown = printable(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"{shown}: is a file; name a directory")
        if path.is_dir() and not (path / GRID_NAME).is_file() and _visible(path):
            raise UsageError(f"{shown}: holds other files and no sweep; name another directory")

    @contextlib.contextmanager
    def opened(self, grid: Grid, *, alone: bool) -> Iterator[None]:
        """Take the place, `alone` or beside other shards; write the grid, remove leftovers.

        Raise InputError when it cannot be written, UsageError when another sweep works there.
        """
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InputError(
                f"cannot be written ({error.strerror})",
                file=printable(self.path),
                fix="check the place or name another with --out",
            ) from None
        try:
            self._lock(lock, alone)
            if alone:
                self._remove_leftovers()
            write_atomic(self.path / GRID_NAME, dump_yaml(grid.to_document()))
            yield
        finally:
            os.close(lock)

    def _lock(self, descriptor: int, alone: bool) -> None:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{printable(self.path)}: another sweep is at work there; wait for it, "
                "share the points with --shard, or name another directory"
            ) from None
        except OSError:
            return  # file systems without locks: runs are still written whole

    def _remove_leftovers(self) -> None:
        for place in (self.path, self.runs):
            for pattern in LEFTOVERS:
                for path in place.glob(f".{pattern}"):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)

    def load(self, key: str) -> Outcome | None:
        """Return the outcome of a run, None when it is not there whole."""
        try:
            manifest = json.loads((self.runs / key / MANIFEST_NAME).read_bytes())
            files = {name: self._checked(key, name, manifest) for name in manifest["files"]}
            if SUMMARY_NAME in files:
                return Outcome(json.loads(files[SUMMARY_NAME]))
            return Outcome(refusal=json.loads(files[REFUSAL_NAME])["refusal"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _checked(self, key: str, name: str, manifest: Mapping[str, Any]) -> bytes:
        content = (self.runs / key / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
            raise ValueError(name)
        return content

    def save(self, key: str, config: str, outcome: Outcome, log: str) -> None:
        """Write a run, whole or not at all."""
        files = {CONFIG_NAME: config.encode()}
        if outcome.summary is not None:
            files[SUMMARY_NAME] = json_text(outcome.summary).encode()
        else:
            files[REFUSAL_NAME] = json_text({"refusal": outcome.refusal}).encode()
        write_run(self.runs / key, files, log, force=True)

    def write_table(self, name: str, content: bytes | str, *, whole: bool) -> Path:
        """Write a table under its name, or as `.partial` while points are missing."""
        final = self.path / name
        partial = final.with_suffix(f".partial{final.suffix}")
        write_atomic(final if whole else partial, content)
        (partial if whole else final).unlink(missing_ok=True)
        return final if whole else partial


def _visible(path: Path) -> bool:
    return any(not child.name.startswith(".") for child in path.iterdir())
