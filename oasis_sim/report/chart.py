"""Bars for a terminal: readable without colour, as wide as the longest value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oasis_sim.text import plain

WIDTH = 40
BLOCK, HALF = "\N{FULL BLOCK}", "\N{LEFT HALF BLOCK}"


@dataclass(frozen=True)
class Bar:
    """Hold one bar: its label, its length, and the value as text; None draws nothing."""

    label: str
    value: float | None
    text: str


def draw(title: str, bars: Sequence[Bar]) -> list[str]:
    """Return lines: the title with its unit, then one bar each, all to the same scale from zero."""
    largest = max((bar.value for bar in bars if bar.value is not None), default=0.0)
    width = max((len(plain(bar.label)) for bar in bars), default=0)
    lines = [plain(title)]
    for bar in bars:
        halves = 0 if not bar.value or largest <= 0 else round(2 * WIDTH * bar.value / largest)
        drawn = BLOCK * (halves // 2) + HALF * (halves % 2)
        lines.append(f"  {plain(bar.label):<{width}}  {drawn}{' ' if drawn else ''}{bar.text}")
    return lines
