"""Curves for a terminal: a letter for each line on a grid of characters."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from oasis_sim.report.numbers import counted, number
from oasis_sim.report.page.document import Curves, Point
from oasis_sim.report.page.scales import Scale, scale, tick
from oasis_sim.text import plain

WIDTH, HEIGHT = 60, 15
SEVERAL = "*"
LETTERS = string.ascii_uppercase
LEVEL = "-"
MOST_LISTED = 12


def plot(curves: Curves) -> list[str]:
    """Return lines: the plot between its axes, then which letter is which line.

    Where points of several lines fall on one place, `*` stands, and their values are listed below.
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
    placed: dict[tuple[int, int], dict[str, Point]] = {}
    for letter, line in zip(_letters(len(curves.lines)), curves.lines, strict=True):
        for point in line.points:
            row, column = round(up.at(point.y)), round(across.at(point.x))
            there = placed.setdefault((row, column), {})
            there.setdefault(letter, point)
            grid[row][column] = letter if len(there) == 1 else SEVERAL
    shared = [each for each in placed.values() if len(each) > 1]
    return [plain(curves.y.title), *_framed(grid, across, up), *_legend(curves, shared)]


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


def _legend(curves: Curves, shared: Sequence[Mapping[str, Point]]) -> list[str]:
    pairs = zip(_letters(len(curves.lines)), curves.lines, strict=True)
    found = [f"x: {plain(curves.x.title)}"]
    found += [f"{letter} {plain(line.name)}" for letter, line in pairs if line.points]
    if curves.limit is not None:
        found.append(f"{LEVEL * 3} {plain(curves.limit_name)}")
    if shared:
        found.append(f"{SEVERAL} several lines at one place; each with its x and y:")
        ordered = sorted(shared, key=lambda each: next(iter(each.values())).x)
        found += [f"  {_values(each)}" for each in ordered[:MOST_LISTED]]
        left = len(shared) - MOST_LISTED
        found += [f"  and {counted(left, 'place')} more"] if left > 0 else []
    return [f"  {text}" for text in found]


def _values(points: Mapping[str, Point]) -> str:
    """Return the points of one place: x once where it is the same, then y by letter."""
    across = {number(point.x) for point in points.values()}
    if len(across) == 1:
        heights = ", ".join(f"{letter} {number(point.y)}" for letter, point in points.items())
        return f"{across.pop()}: {heights}"
    return ", ".join(f"{each} {number(at.x)}: {number(at.y)}" for each, at in points.items())
