"""How fields, numbers and quantities are spelt in messages about a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio.document import Path


def any_quantity(parse: Callable[[str], Any]) -> str:
    """Find a unit that the parser accepts, for the stand-in after a mistake."""
    for text in ("1 B", "1 B/s", "1 ps", "1 FLOP/s", "1 W"):
        try:
            parse(text)
        except InputError:
            continue
        return text
    raise TypeError("quantity needs a parser of oasis_sim.units")


def dotted(path: Path) -> str:
    """Spell a path as ``curve[0].size``."""
    spelt = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return spelt.removeprefix(".")


def plain_number(value: object) -> str:
    """Write a number without an exponent where a short spelling exists."""
    return f"{value:g}" if isinstance(value, float) else str(value)
