"""Curves for a terminal: a letter for each line on a grid of characters."""

from __future__ import annotations

import string

from oasis_sim.report.page.document import Curves
from oasis_sim.report.page.scales import Scale, scale, tick
from oasis_sim.text import plain

WIDTH, HEIGHT = 60, 15
SEVERAL = "*"
LETTERS = string.ascii_uppercase
LEVEL = "-"


def plot(curves: Curves) -> list[str]:
    """Return lines: the plot between its axes, then which letter is which line.

    Where points of several lines fall on one place, `*` stands.
    """
    points = [point for line in curves.lines for point in line.points]
    if not points:
        return []
    heights = [point.y for point in points]
    heights += [] if curves.limit is None else [curves.limit]
    across = scale([point.x for point in points], 0, WIDTH - 1, log=curves.x.log)
    up = scale(heights, HEIGHT - 1, 0, log=curves.y.log)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    if curves.limit is not None:
        grid[round(up.at(curves.limit))] = [LEVEL] * WIDTH
    for letter, line in zip(_letters(len(curves.lines)), curves.lines, strict=True):
        for point in line.points:
            row, column = round(up.at(point.y)), round(across.at(point.x))
            there = grid[row][column]
            grid[row][column] = letter if there in (" ", LEVEL, letter) else SEVERAL
    return [plain(curves.y.title), *_framed(grid, across, up), *_legend(curves)]


def _letters(count: int) -> str:
    return "".join(LETTERS[index % len(LETTERS)] for index in range(count))


def _framed(grid: list[list[str]], across: Scale, up: Scale) -> list[str]:
    """Put ticks beside and below the grid."""
    names = {round(up.at(value)): tick(value) for value in up.ticks}
    margin = max(len(name) for name in names.values())
    lines = []
    for row, cells in enumerate(grid):
        edge = "\N{BOX DRAWINGS LIGHT VERTICAL AND LEFT}" if row in names else _BAR
        lines.append(f"{names.get(row, ''):>{margin}} {edge}{''.join(cells)}".rstrip())
    below = [" "] * (WIDTH + 8)
    free = 0
    for value in across.ticks:
        place, name = round(across.at(value)), tick(value)
        if place >= free:
            below[place : place + len(name)] = name
            free = place + len(name) + 1
    lines.append(f"{'':>{margin}} \N{BOX DRAWINGS LIGHT UP AND RIGHT}{_RULE * WIDTH}")
    lines.append(f"{'':>{margin}}  {''.join(below).rstrip()}")
    return lines


_BAR = "\N{BOX DRAWINGS LIGHT VERTICAL}"
_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def _legend(curves: Curves) -> list[str]:
    pairs = zip(_letters(len(curves.lines)), curves.lines, strict=True)
    found = [f"x: {plain(curves.x.title)}"]
    found += [f"{letter} {plain(line.name)}" for letter, line in pairs if line.points]
    if curves.limit is not None:
        found.append(f"{LEVEL * 3} {plain(curves.limit_name)}")
    return [f"  {text}" for text in found]
