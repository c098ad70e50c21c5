"""Grids: which options take which values, from `--vary NAME=VALUES` or a YAML file.

Values are texts, as a user would give them to an option: names and numbers separated by commas,
and ranges: `8..256x2` (8, 16, ... 256), `10..50+10` (10, 20, ... 50), `1..4` (1, 2, 3, 4).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from oasis_sim.errors import UsageError
from oasis_sim.fileio import Document, Fields, load_yaml, printable

FORMAT = "oasis-sweep"
VERSION = 1
MOST_VALUES = 10_000
MOST_POINTS = 1_000_000

MOST_DIGITS = 30
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:([x+])({_NUMBER}))?")
PLAIN_NUMBER = re.compile(_NUMBER)
_NODES = re.compile(r"(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True)
class Grid:
    """Hold fixed options and varied ones, both as texts by option name (`fetch_ratio`)."""

    base: Mapping[str, str] = field(default_factory=dict)
    vary: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def in_order(self, names: Sequence[str]) -> Grid:
        """Return the same grid in canonical order: options as in `names`, values ascending.

        So a grid gives the same table however it was written. Raise UsageError for unknown names.
        """
        for name in (*self.base, *self.vary):
            if name not in names:
                known = ", ".join(names)
                raise UsageError(f"cannot vary {printable(name, 60)!r}; known: {known}")
        both = sorted(set(self.base) & set(self.vary))
        if both:
            raise UsageError(f"{both[0]} is both fixed and varied; leave one out")
        return Grid(
            {name: self.base[name] for name in names if name in self.base},
            {name: tuple(sort_values(self.vary[name])) for name in names if name in self.vary},
        )

    def points(self) -> Iterator[dict[str, str]]:
        """Yield the varied options of every point; the last one changes fastest."""
        count = 1
        for values in self.vary.values():
            count *= len(values)
        if count > MOST_POINTS:
            raise UsageError(f"the grid has {count:,} points; at most {MOST_POINTS:,} are allowed")
        for combination in itertools.product(*self.vary.values()):
            yield dict(zip(self.vary, combination, strict=True))

    def to_document(self) -> dict[str, Any]:
        """Return the grid as the mapping of a grid file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "base": dict(self.base),
            "vary": {name: list(values) for name, values in self.vary.items()},
        }


def sort_values(values: Sequence[str]) -> list[str]:
    """Return values once each, spelled one way: numbers ascending, then P:D so, then names."""
    numbers = {_decimal(text) for text in values if PLAIN_NUMBER.fullmatch(text)}
    names = {text for text in values if not PLAIN_NUMBER.fullmatch(text)}
    return [spelled(value) for value in sorted(numbers)] + sorted(names, key=_in_order)


def _in_order(name: str) -> tuple[bool, tuple[int, ...], str]:
    nodes = _NODES.fullmatch(name)
    return nodes is None, tuple(map(int, nodes.groups())) if nodes else (), name


def _decimal(text: str) -> Decimal:
    """Return a number exactly; raise UsageError for one of very many digits."""
    value = Decimal(text) if len(text) <= 2 * MOST_DIGITS else None
    if value is None or abs(value.adjusted()) >= MOST_DIGITS:
        raise UsageError(
            f"{printable(text, 40)} is out of range; write a number of up to {MOST_DIGITS} digits"
        )
    return value


def spelled(value: Decimal) -> str:
    """Return a number without exponent and needless zeros."""
    return format(value.normalize(), "f")


def parse_vary(text: str) -> tuple[str, tuple[str, ...]]:
    """Read `NAME=VALUES`; raise UsageError when it is neither."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--vary {printable(text, 60)}: write NAME=VALUES")
    option = option_name(name)
    if not values.strip():
        raise UsageError(f"--vary {printable(option, 60)}=: names no value")
    try:
        return option, expand(values)
    except UsageError as error:
        raise UsageError(f"--vary {printable(option, 60)}: {error}") from None


def option_name(text: str) -> str:
    """Return the name of an option as grids spell it: `--fetch-ratio` is `fetch_ratio`."""
    return text.strip().lstrip("-").replace("-", "_")


def expand(text: str) -> tuple[str, ...]:
    """Return the values of a list with ranges; raise UsageError for a range without end."""
    values: list[str] = []
    for item in text.split(","):
        item_text = item.strip()
        if not item_text:
            raise UsageError(f"{printable(text, 60)!r}: a value is empty")
        match = _RANGE.fullmatch(item_text)
        values += _range(item_text, *match.groups()) if match else [item_text]
    return tuple(values)


def _range(text: str, low: str, high: str, kind: str | None, step: str | None) -> list[str]:
    first, last, by = (_decimal(each) for each in (low, high, step or "1"))
    if first > last or (kind == "x" and (by <= 1 or first == 0)) or by == 0:
        raise UsageError(
            f"range {printable(text, 60)!r} never ends or holds nothing; write LOW..HIGHxFACTOR "
            "with a factor above 1, or LOW..HIGH+STEP"
        )
    values: list[str] = []
    while first <= last:
        if len(values) >= MOST_VALUES:
            raise UsageError(f"range {printable(text, 60)!r} has more than {MOST_VALUES:,} values")
        values.append(spelled(first))
        first = first * by if kind == "x" else first + by
    return values


def read_grid(path: str, problem_of: Callable[[str, str], str | None]) -> Grid:
    """Read a grid file; raise InputError with every mistake and its line.

    `problem_of(name, text)` says what is wrong with the value of an option, None when nothing is.
    """
    document = load_yaml(path)
    fields = Fields.of(document)
    fields.text("format", FORMAT, choices=(FORMAT,))
    fields.integer("version", VERSION, low=VERSION, high=VERSION)
    base, vary = (_section(fields, document, key, problem_of) for key in ("base", "vary"))
    for name in sorted(set(base) & set(vary)):
        fields.mistake("vary", f"{name} is fixed in 'base' too", "leave one out", None)
    fields.finish()
    return Grid({name: values[0] for name, values in base.items()}, vary)


def _section(
    fields: Fields, document: Document, key: str, problem_of: Callable[[str, str], str | None]
) -> dict[str, tuple[str, ...]]:
    """Return the options of one section, each with its values as texts; note mistakes."""
    if not fields.has(key):
        return {}
    child = fields.child(key)
    found: dict[str, tuple[str, ...]] = {}
    for name in child.keys():  # noqa: SIM118 - no mapping
        value = document.value[key][name]
        items = value if isinstance(value, list) else [value]
        option = option_name(name)
        try:
            texts = _texts(items, key)
        except UsageError as error:
            child.mistake(name, str(error), None, None)
            continue
        if option in found:
            child.mistake(name, "stands twice, spelled another way", "keep one of them", None)
        problems = (problem_of(option, text) for text in texts)
        problem = next((each for each in problems if each is not None), None)
        if problem is not None:
            child.mistake(name, problem, None, None)
        found[option] = texts
    return found


def _texts(items: Sequence[Any], section: str) -> tuple[str, ...]:
    """Return the values of one option as texts; raise UsageError for what is no value."""
    if not items or any(isinstance(item, bool | list | dict) or item is None for item in items):
        raise UsageError("is no value or list of values; write 0.05 or [a, b]")
    if section == "base" and len(items) > 1:
        raise UsageError("takes one value each; move lists to 'vary'")
    return tuple(text for item in items for text in _one(item, section))


def _one(item: float | str, section: str) -> tuple[str, ...]:
    if isinstance(item, str):
        return expand(item) if section == "vary" else (item,)
    return (spelled(_decimal(repr(item))),)
