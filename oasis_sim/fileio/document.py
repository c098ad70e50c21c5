"""Human-written files as plain values plus the line of each of them.

YAML is read strictly: 1.2 scalars (only true and false are booleans, ``1e9`` and ``3.35e12``
are numbers), one document, no anchors, aliases or tags, no duplicate keys. JSON likewise, and
``NaN`` or ``Infinity`` is refused. Both give a Document; `Document.fields` checks its content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from oasis_sim.errors import InputError
from oasis_sim.fileio.streams import read_bytes
from oasis_sim.fileio.text import printable
from oasis_sim.units import MIB

DOCUMENT_CAP_BYTES = 2 * MIB
_DEPTH_CAP = 64
_DIGITS_CAP = 400

Path = tuple[str | int, ...]
"""Where a value stands in a document: keys and list positions from the top."""


@dataclass(frozen=True)
class Document:
    """Hold a parsed file: plain dicts, lists and scalars, and the line of each path."""

    value: Any
    file: str
    lines: Mapping[Path, int] = field(default_factory=dict)


def load_yaml(path: str | FilePath) -> Document:
    """Read a YAML file; raise InputError with file and line for anything but strict YAML."""
    return loads_yaml(_text(path), printable(path))


def loads_yaml(text: str, file: str) -> Document:
    """Parse YAML text that came from `file`."""
    try:
        return _Composer(file).compose(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        if isinstance(error, yaml.reader.ReaderError):  # a character that no YAML may hold
            line = text.count("\n", 0, error.position) + 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None)
        raise InputError(
            f"is not valid YAML ({printable(problem or 'unreadable text')})",
            file=file,
            line=line,
            fix="check indentation, quotes and brackets there",
        ) from None


def load_json(path: str | FilePath) -> Document:
    """Read a JSON file of one value; raise InputError with file and line for anything else."""
    return loads_json(_text(path), printable(path))


def loads_json(text: str, file: str, line: int | None = None) -> Document:
    """Parse JSON text that came from `file` (from one `line` of it, if given)."""
    try:
        value = _JSON.decode(text)
    except json.JSONDecodeError as error:
        at = line if line is not None else error.lineno
        raise InputError(
            f"is not valid JSON ({error.msg}, column {error.colno})",
            file=file,
            line=at,
            fix="the file may be cut off or edited by hand",
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", file=file, line=line) from None
    except _NotFiniteError as error:
        field_name = _first_not_finite(text)
        fix = "write a finite number"
        raise InputError(str(error), file=file, line=line, field=field_name, fix=fix) from None
    except _BadValueError as error:
        raise InputError(str(error), file=file, line=line) from None
    return Document(value, file, {} if line is None else {(): line})


class _BadValueError(ValueError):
    """Report valid JSON syntax with a value that no reader should accept."""


class _NotFiniteError(ValueError):
    """Report NaN or Infinity, which JSON does not know but Python's reader does."""


def _refuse_constant(name: str) -> Any:
    raise _NotFiniteError(f"{name} is not a number")


def _first_not_finite(text: str) -> str | None:
    """Name the place of the first NaN or Infinity, as ``a.b[2]``; None when it stands alone."""
    try:
        stack: list[tuple[str, Any]] = [("", json.loads(text))]
    except (ValueError, RecursionError):
        return None
    while stack:
        place, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return printable(place.removeprefix("."), 120) or None
        if isinstance(value, dict):
            stack.extend((f"{place}.{key}", item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            inner = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
            stack.extend(reversed(inner))
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _BadValueError(f"key {printable(key, 60)!r} stands twice")
            seen.add(key)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS_CAP:
        raise _BadValueError(f"a number of {len(digits)} digits is too large")
    return int(digits)


_JSON = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_integer
)


def _text(path: str | FilePath) -> str:
    raw = read_bytes(path, DOCUMENT_CAP_BYTES)
    if b"\0" in raw:
        raise InputError("holds binary data", file=printable(path), fix="name a text file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            "is not UTF-8 text", file=printable(path), fix="save it as UTF-8"
        ) from None


_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}


def plain_scalar(text: str) -> Any:
    """Return what an unquoted scalar means: null, a boolean, a number or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Composer:
    """Build plain values from YAML events with an explicit stack (no recursion)."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._lines: dict[Path, int] = {}
        self._stack: list[_Open] = []
        self._root: Any = None
        self._documents = 0

    def compose(self, text: str) -> Document:
        """Parse the text; an empty document is the value None."""
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    raise self._error("holds a second document", line, "keep one per file")
            elif isinstance(event, yaml.AliasEvent):
                raise self._error("uses an alias", line, "write the value out")
            elif isinstance(event, yaml.NodeEvent):
                self._check_plain(event, line)
                self._node(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._stack.pop()
        return Document(self._root, self._file, self._lines)

    def _check_plain(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            raise self._error("uses an anchor", line, "write the value out")
        if getattr(event, "tag", None) is not None:
            raise self._error("uses a tag", line, "write a plain value")

    def _node(self, event: yaml.NodeEvent, line: int) -> None:
        top = self._stack[-1] if self._stack else None
        if top is not None and top.awaits_key:
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error("a key is not plain text", line, "write 'key: value'")
            top.key = event.value
            if top.key in top.value:
                name = printable(top.key, 60)
                raise self._error(f"key {name!r} stands twice", line, "keep one of them")
            top.awaits_key = False
            self._lines[(*top.path, top.key)] = line
            return
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, line)
        else:
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._place(top, value, line)
        if not isinstance(event, yaml.ScalarEvent):
            if len(self._stack) >= _DEPTH_CAP:
                raise self._error("is nested too deeply", line, "is this the right file?")
            self._stack.append(_Open(value, path, isinstance(value, dict)))

    def _place(self, top: _Open | None, value: Any, line: int) -> Path:
        if top is None:
            self._root = value
            self._lines[()] = line
            return ()
        if isinstance(top.value, list):
            path: Path = (*top.path, len(top.value))
            top.value.append(value)
            self._lines[path] = line
            return path
        top.value[top.key] = value
        top.awaits_key = True
        return (*top.path, top.key)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        text = event.value
        if event.style is not None:
            return text
        if len(text) > _DIGITS_CAP and text[:9].strip("+-.").isdigit():
            raise self._error(f"a number of {len(text)} digits is too large", line, None)
        return plain_scalar(text)

    def _error(self, problem: str, line: int, fix: str | None) -> InputError:
        return InputError(problem, file=self._file, line=line, fix=fix)


@dataclass
class _Open:
    """Keep a mapping or list that is being filled, and for a mapping the pending key."""

    value: Any
    path: Path
    awaits_key: bool
    key: str = ""
