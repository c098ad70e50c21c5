"""The names that docs/columns.md gives: by section, in the order of its tables."""

from __future__ import annotations

import csv
import io
import re
from itertools import product
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
NAMED = re.compile(r"`([^`]+)`")
CHOICE = re.compile(r"\{([^}]*)\}")


def documented(section: str) -> list[str]:
    """Return the names in the first column of a section's tables, `{a,b}` as two names."""
    found = dict(SECTION.findall(PAGE.read_text("utf-8")))[section]
    cells = [line.split("|")[1] for line in found.splitlines() if line.startswith("| `")]
    return [name for cell in cells for each in NAMED.findall(cell) for name in spelt_out(each)]


def sections() -> list[str]:
    """Return the titles of all sections."""
    return [title for title, _ in SECTION.findall(PAGE.read_text("utf-8"))]


def spelt_out(name: str) -> list[str]:
    """Return the names that a name with choices stands for."""
    parts = CHOICE.split(name)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(each) for each in product(*choices)]


def header(text: str) -> list[str]:
    """Return the first line of a CSV."""
    return next(csv.reader(io.StringIO(text)))


def numbered(name: str) -> str:
    """Return a dotted path with N for the places in lists."""
    return re.sub(r"\.\d+(?=\.|$)", ".N", name)
