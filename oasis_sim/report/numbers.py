"""Numbers as a report shows them: about four digits, thousands separated, a dash for nothing."""

from __future__ import annotations

from oasis_sim import text
from oasis_sim.units import format_bytes

NOTHING = "-"
MILLISECONDS_SHOWN = 10_000


def number(value: float | None) -> str:
    """Return a number with about four significant digits."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 1 else 3 if size >= 0.1 else 4
    return f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Return a time given in milliseconds, in seconds once it is long."""
    if value is None:
        return NOTHING
    if abs(value) < MILLISECONDS_SHOWN:
        return f"{number(value)} ms"
    return f"{number(value / 1_000)} s"


def count(value: int | None) -> str:
    """Return a whole number with separated thousands."""
    return NOTHING if value is None else f"{value:,}"


def counted(value: int | None, noun: str) -> str:
    """Return a whole number with its noun in the singular or plural."""
    return f"{NOTHING} {noun}s" if value is None else text.counted(value, noun)


def percent(share: float | None) -> str:
    """Return a share as a percentage."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def rate(value: float | None, unit: str) -> str:
    """Return a number with its unit."""
    return NOTHING if value is None else f"{number(value)} {unit}"


def gigabytes(size: float | None) -> str:
    """Return what was moved in decimal units (GB is 1e9 bytes), as rates of links are given."""
    return NOTHING if size is None else format_bytes(size)


def gibibytes(size: float | None) -> str:
    """Return a size of memory in binary units (GiB is 2**30 bytes), as drivers report it."""
    return NOTHING if size is None else format_bytes(size, binary=True)
