"""Check the fields of a human-written file and report all its mistakes at once.

    fields = Fields.of(load_yaml("h100.yaml"))
    name = fields.text("name")
    hbm = fields.child("hbm")
    capacity_bytes = hbm.quantity("capacity", parse_bytes)
    efficiency = hbm.number("efficiency", low=0, high=1)
    fields.finish()            # raises one InputError: every mistake, each with its line

A getter that meets a mistake notes it and returns a harmless stand-in, so that the reading goes
on; use the values only after `finish`, which also refuses keys that no getter asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from oasis_sim.errors import InputError
from oasis_sim.fileio.document import Document, Path
from oasis_sim.fileio.mistakes import MistakesError, did_you_mean, raise_all
from oasis_sim.fileio.numeric import is_number
from oasis_sim.fileio.spelling import any_quantity, dotted, plain_number
from oasis_sim.fileio.text import printable

LARGEST_EXACT = 2**53
"""The largest integer that survives JSON and floating point; greater ones are refused."""

T = TypeVar("T")
Quantity = TypeVar("Quantity", int, float)


class Fields:
    """Give checked access to one mapping of a document; see the module's example."""

    def __init__(
        self, value: dict[str, Any], document: Document, path: Path, mistakes: list[InputError]
    ) -> None:
        """Look at the mapping `value`, which stands at `path`; share the list of mistakes."""
        self._value = value
        self._document = document
        self._path = path
        self._mistakes = mistakes
        self._asked: dict[str, None] = {}
        self._children: list[Fields] = []

    @classmethod
    def of(cls, document: Document) -> Fields:
        """Start at the top of a document; raise InputError when it is empty or no mapping."""
        if document.value is None:
            raise InputError("is empty", file=document.file, fix="write 'key: value' lines")
        if not isinstance(document.value, dict):
            raise InputError(
                f"holds {_kind(document.value)} where 'key: value' pairs are expected",
                file=document.file,
                line=document.lines.get(()),
            )
        return cls(document.value, document, (), [])

    @property
    def file(self) -> str:
        """Name the file, cleaned for messages."""
        return self._document.file

    def has(self, key: str) -> bool:
        """Say whether a key is given and not null; this counts as asking for it."""
        self._asked[key] = None
        return self._value.get(key) is not None

    def written(self, key: str) -> bool:
        """Say whether a key is given, be it empty: its getter then refuses that."""
        self._asked[key] = None
        return key in self._value

    def is_mapping(self, key: str) -> bool:
        """Say whether a key holds a mapping; this counts as asking for it."""
        return self.has(key) and isinstance(self._value[key], dict)

    def is_filled_list(self, key: str) -> bool:
        """Say whether a key holds a list with entries; this counts as asking for it."""
        return self.has(key) and isinstance(self._value[key], list) and bool(self._value[key])

    def keys(self) -> tuple[str, ...]:
        """List the keys of a mapping whose keys are names; this counts as asking for them."""
        self._asked.update(dict.fromkeys(self._value))
        return tuple(self._value)

    def text(
        self, key: str, default: str | None = None, *, choices: Sequence[str] | None = None
    ) -> str:
        """Return a non-empty text, one of `choices` if given."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            return self._wrong(key, value, "text", choices[0] if choices else "")
        if choices is not None and value not in choices:
            fix = f"use one of {', '.join(choices)}{did_you_mean(value, choices)}"
            return self.mistake(key, f"{printable(value, 60)!r} is not known", fix, choices[0])
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        return value if isinstance(value, bool) else self._wrong(key, value, "true or false", False)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = LARGEST_EXACT
    ) -> int:
        """Return an integer from low to high (also written as ``1e9``)."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return self._wrong(key, value, "a whole number", low)
        return value if low <= value <= high else self._outside(key, value, low, high)

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        low: float = 0.0,
        high: float = float(LARGEST_EXACT),
    ) -> float:
        """Return a finite number from low to high."""
        value = self._get(key, default)
        return self._number(key, value, low, high)

    def numbers(
        self, key: str, *, low: float = 0.0, high: float = float(LARGEST_EXACT), count: int = 0
    ) -> tuple[float, ...]:
        """Return a non-empty list of finite numbers (exactly `count` of them, if given)."""
        return tuple(self._number(name, item, low, high) for name, item in self._items(key, count))

    def quantity(
        self,
        key: str,
        parse: Callable[[str], Quantity],
        default: str | None = None,
        *,
        within: tuple[str, str] | None = None,
    ) -> Quantity:
        """Return a quantity with its unit in words, read by a parser of oasis_sim.units.

        `within` gives the least and the largest as they would be written.
        """
        return self._quantity(key, self._get(key, default), parse, within)

    def quantities(
        self,
        key: str,
        parse: Callable[[str], Quantity],
        *,
        count: int = 0,
        within: tuple[str, str] | None = None,
    ) -> tuple[Quantity, ...]:
        """Return a non-empty list of quantities (exactly `count` of them, if given)."""
        items = self._items(key, count)
        return tuple(self._quantity(name, item, parse, within) for name, item in items)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a non-empty list of texts."""
        found = []
        for name, item in self._items(key, 0):
            good = isinstance(item, str) and item
            found.append(item if good else self._wrong(name, item, "text", ""))
        return tuple(found)

    def child(self, key: str) -> Fields:
        """Return the mapping under a key."""
        return self._child((key,), self._get(key, None))

    def children(self, key: str) -> tuple[Fields, ...]:
        """Return the mappings of a non-empty list."""
        return tuple(self._child(place, item) for place, item in self._items(key, 0))

    def mistake(self, key: str | Path, problem: str, fix: str | None, stand_in: T) -> T:
        """Note a mistake at a key or path below here (also the caller's) and return stand_in."""
        path = (*self._path, *((key,) if isinstance(key, str) else key))
        self._mistakes.append(
            InputError(
                problem,
                file=self._document.file,
                line=self._line(path),
                field=printable(dotted(path), 120),
                fix=fix,
            )
        )
        return stand_in

    def adopt(self, error: InputError) -> None:
        """Note the mistakes of an object built from these fields, each at its field's line."""
        for mistake in error.mistakes if isinstance(error, MistakesError) else (error,):
            self.mistake(mistake.field or "", mistake.problem, mistake.fix, None)

    @property
    def clean(self) -> bool:
        """Say whether no mistake has been noted so far."""
        return not self._mistakes

    def finish(self) -> None:
        """Refuse unknown keys here and below, then raise all mistakes as one InputError."""
        self.refuse_unknown()
        raise_all(self._mistakes)

    def refuse_unknown(self) -> None:
        """Note every key, here and below, that no getter asked for."""
        for key in self._value:
            if key not in self._asked:
                guess = did_you_mean(key, [name for name in self._asked if name not in self._value])
                self.mistake(key, "is not a known key", f"remove it{guess}", None)
        for child in self._children:
            child.refuse_unknown()

    def _get(self, key: str, default: Any) -> Any:
        self._asked[key] = None
        if key not in self._value:
            return default
        # Written but left empty: taking the default in silence would hide a slip of the pen.
        return _NULL if self._value[key] is None else self._value[key]

    def _items(self, key: str, count: int) -> Iterator[tuple[Path, Any]]:
        value = self._get(key, None)
        if not isinstance(value, list) or not value:
            self._wrong(key, value, "a list that is not empty", None)
            return
        if count and len(value) != count:
            self.mistake(key, f"has {len(value)} entries", f"give {count}", None)
        yield from (((key, index), item) for index, item in enumerate(value))

    def _child(self, place: Path, value: Any) -> Fields:
        if not isinstance(value, dict):
            value = self._wrong(place, value, "'key: value' pairs", {})
            return Fields(value, self._document, (*self._path, *place), [])
        found = Fields(value, self._document, (*self._path, *place), self._mistakes)
        self._children.append(found)
        return found

    def _number(self, key: str | Path, value: Any, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong(key, value, "a number", low)
        if not is_number(value, low, high):
            return self._outside(key, value, low, high)
        return float(value)

    def _quantity(
        self,
        key: str | Path,
        value: Any,
        parse: Callable[[str], Quantity],
        within: tuple[str, str] | None,
    ) -> Quantity:
        low, high = within or (any_quantity(parse), None)
        if value is None or value is _NULL:
            return self._wrong(key, value, "a quantity with its unit", parse(low))
        try:
            found = parse(value)
        except InputError as error:
            return self.mistake(key, error.problem, error.fix, parse(low))
        if high is None or parse(low) <= found <= parse(high):
            return found
        problem = f"{printable(value, 40)} is out of range"
        return self.mistake(key, problem, f"use {low} to {high}", parse(low))

    def _wrong(self, key: str | Path, value: Any, wanted: str, stand_in: T) -> T:
        if value is None:
            return self.mistake(key, "is missing", f"add {wanted}", stand_in)
        return self.mistake(key, f"is {_kind(value)}", f"write {wanted}", stand_in)

    def _outside(self, key: str | Path, value: float, low: T, high: float) -> T:
        fix = f"use {plain_number(low)} to {plain_number(high)}"
        return self.mistake(key, f"{printable(value, 40)} is out of range", fix, low)

    def _line(self, path: Path) -> int | None:
        """Find the nearest line that is known: of the value, else of what holds it."""
        while path and path not in self._document.lines:
            path = path[:-1]
        return self._document.lines.get(path)


_NULL = object()
"""Stand for a key that is written but left empty, apart from a key that is missing."""


def _kind(value: Any) -> str:
    if value is _NULL or value is None:
        return "empty"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        return f"the text {printable(value, 60)!r}"
    if isinstance(value, int | float):
        return f"the number {printable(value, 40)}"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a mapping"
