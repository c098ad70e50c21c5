"""Measured results are there to be read: every file of validation/ is named where it is used."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[\w.*-]+\.(?:json|txt|yaml)")


def test_every_measured_file_is_named_in_the_documentation() -> None:
    """By name or by a pattern such as `quality-proxy-*.json`; a profile goes with its readings.

    One that is not: say what it shows, or drop it.
    """
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for page in pages for name in NAME.findall(page.read_text("utf-8"))}
    named -= {"*.json", "*.txt", "*.yaml"}
    paths = [path for path in (ROOT / "validation").iterdir() if path.name[0] != "."]
    files = {path.name for path in paths}
    files -= {path.name for path in paths if path.with_suffix(".json").name in files - {path.name}}
    assert files
    assert set() == {file for file in files if not any(fnmatch(file, name) for name in named)}
