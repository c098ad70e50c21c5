"""Options that hold several values, separated by commas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from oasis_sim.cli.options import MOST_TOKENS

Number = TypeVar("Number", int, float)

ALL = "all"
MOST_DIGITS = 20


def scheme_list(text: str | None) -> list[str]:
    """Return the schemes of one option, separated by commas; a file may have one in its name."""
    if text is None or Path(text).is_file():
        return [] if text is None else [text]
    return [name.strip() for name in text.split(",")]


def listed(read: Callable[[str], Number]) -> Callable[..., tuple[Number, ...]]:
    """Return a callback that reads lists with commas, item by item, or fails as usage."""

    def convert(
        ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None
    ) -> tuple[Number, ...]:
        lists = (value,) if isinstance(value, str) else value or ()
        items = [item.strip() for text in lists for item in text.split(",")]
        try:
            return tuple(read(item) for item in items)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return convert


def read_ratio(text: str) -> float:
    """Read a fetch ratio, 0 to 1 or ``all``."""
    try:
        ratio = 1.0 if text == ALL else float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"{text[:40]!r} is no fetch ratio; use 0 to 1 or {ALL}")
    return ratio


def read_budget(text: str) -> int:
    """Read a number of tokens."""
    if not 1 <= (tokens := _whole(text)) <= MOST_TOKENS:
        raise ValueError(f"{text[:40]!r} is no number of tokens; use 1 to {MOST_TOKENS}")
    return tokens


def read_cap(text: str) -> int:
    """Read a number of blocks."""
    if not 0 <= (blocks := _whole(text)) <= MOST_TOKENS:
        raise ValueError(f"{text[:40]!r} is no number of blocks; use 0 to {MOST_TOKENS}")
    return blocks


def _whole(text: str) -> int:
    """Read digits of a reasonable number; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else -1
