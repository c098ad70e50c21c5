"""Trace files as JSON lines: the header, then one object per step (docs/trace-format.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.fileio import TextLines, loads_json, printable
from oasis_sim.trace.build import CAP_BYTES, array_type, build_trace, flatten
from oasis_sim.trace.header import check_header, with_integers
from oasis_sim.trace.jsonl_values import (
    UNKNOWN_TOKEN,
    filled_cells,
    flat_keys,
    holds_truth,
    is_token,
    rectangle,
    stack,
)
from oasis_sim.trace.trace import NO_BLOCK, AttentionTrace
from oasis_sim.units import format_bytes

NEXT_TOKEN = "next_token"  # noqa: S105 (no password)
_BLANK_LINE_CAP = 1000
_COUNTED_KEYS = 1000
_ARRAY_BYTES = 128
"""What an array takes beside its numbers."""
_CELL_BYTES = 8
_FILL = {"mass": 0}


def dump_jsonl(trace: AttentionTrace) -> Iterator[str]:
    """Yield the lines of a trace, each with its line end."""
    yield json.dumps(trace.meta) + "\n"
    arrays = flatten(trace)
    token = arrays.pop("token")
    for step in range(trace.steps):
        row: dict[str, Any] = {
            "position": int(trace.position[step]),
            "token": int(token[step]),
            NEXT_TOKEN: int(token[step + 1]),
        }
        # Numbers first, then the long lists, so that a person sees the start of each line.
        keys = sorted(arrays, key=lambda key: (arrays[key].ndim, list(arrays).index(key)))
        row |= {key: arrays[key][step].tolist() for key in keys if key != "position"}
        yield json.dumps(row, separators=(",", ":")) + "\n"


def load_jsonl(lines: TextLines, file: str) -> AttentionTrace:
    """Read and check a trace; raise InputError with the line of the first mistake."""
    numbered = _filled(lines, file)
    first = next(numbered, None)
    if first is None:
        raise InputError("is empty", file=file, fix="is this the right file?")
    meta = loads_json(first[1], file, first[0]).value
    check_header(meta, file, first[0])
    meta = with_integers(meta)
    reader = _StepReader(meta, file)
    number = first[0]
    for number, text in numbered:
        reader.add(number, text)
    if reader.steps != meta["steps"]:
        raise InputError(
            f"holds {reader.steps} steps, the header says {meta['steps']}",
            file=file,
            line=number,
            fix="the file may be cut off",
        )
    return build_trace(meta, reader.arrays(), file, reader.warnings())


def _filled(lines: TextLines, file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank; refuse a flood of blank ones."""
    blank = 0
    for number, text in lines:
        if text and not text.isspace():
            yield number, text
            continue
        blank += 1
        if blank > _BLANK_LINE_CAP:
            fix = "is this the right file?"
            raise InputError("holds too many blank lines", file=file, line=number, fix=fix)


class _StepReader:
    """Collect steps line by line; every line must hold the keys of the first step."""

    def __init__(self, meta: dict[str, Any], file: str) -> None:
        self._meta = meta
        self._file = file
        self._rows: dict[str, list[NDArray[Any]]] = {}
        self._next_token: int | None = None
        self._token: list[int] = []
        self._unknown: set[str] = set()
        self._widest: dict[str, int] = {}
        self._held_bytes = 0
        self.steps = 0

    def add(self, number: int, text: str) -> None:
        """Read one step."""
        if self.steps >= self._meta["steps"]:
            problem = f"holds more steps than the {self._meta['steps']} of the header"
            raise InputError(problem, file=self._file, line=number, fix="repair its writer")
        step = flat_keys(self._decode(text, number))
        self._add_token(step, number)
        for key in list(step):
            if array_type(key) is None:
                if len(self._unknown) < _COUNTED_KEYS:
                    self._unknown.add(printable(key, 60))
                del step[key]
        self._check_keys(set(step), number)
        arrays = {key: self._array(key, value, number) for key, value in step.items()}
        self._check_position(int(arrays["position"]), number)
        self._check_size(arrays, number)
        for key, array in arrays.items():
            self._rows.setdefault(key, []).append(array)
        self.steps += 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the schema, short lists filled up."""
        token = [*self._token, UNKNOWN_TOKEN if self._next_token is None else self._next_token]
        found: dict[str, NDArray[Any]] = {
            key: stack(rows, self._width(key), _FILL.get(key, NO_BLOCK))
            for key, rows in self._rows.items()
        }
        return {"token": np.array(token, dtype=np.int32)} | found

    def warnings(self) -> tuple[str, ...]:
        """Say what was dropped or assumed."""
        found = []
        if self._unknown:
            names = ", ".join(sorted(self._unknown)[:10])
            found.append(f"unknown keys of steps dropped: {names}")
        if self._next_token is None:
            found.append(f"the last step has no {NEXT_TOKEN}; the token after it is unknown")
        return tuple(found)

    def _width(self, key: str) -> int:
        """Return the least length of the last axis."""
        return 0 if key == "mass" else int(self._meta["stored_blocks"])

    def _check_position(self, position: int, number: int) -> None:
        """Hold positions to an increasing order."""
        before = int(self._rows["position"][-1]) if self.steps else -1
        if position <= before:
            problem = f"step {self.steps}: is {position}"
            problem += f" after {before}" if self.steps else ", less than 0"
            fix = "positions must be 0 or more and increase from step to step"
            raise self._error(number, "position", problem, fix)

    def _check_size(self, arrays: dict[str, NDArray[Any]], number: int) -> None:
        """Refuse steps that take too much memory, also once their lists are filled up."""
        whole = 0
        for key, array in arrays.items():
            self._held_bytes += array.nbytes + _ARRAY_BYTES
            if array.ndim:
                width = max(self._widest.get(key, self._width(key)), array.shape[-1])
                self._widest[key] = width
                whole += array.shape[0] * array.shape[1] * width * array.itemsize
        if max(whole * (self.steps + 1), self._held_bytes) > CAP_BYTES:
            problem = f"step {self.steps}: the steps take more than {format_bytes(CAP_BYTES)}"
            fix = "keep fewer steps, layers or blocks (stored_blocks)"
            raise self._error(number, None, problem, fix)

    def _error(self, number: int, key: str | None, problem: str, fix: str) -> InputError:
        name = None if key is None else printable(key, 120)
        return InputError(problem, file=self._file, line=number, field=name, fix=fix)

    def _decode(self, text: str, number: int) -> dict[str, Any]:
        try:
            value = _STEP.decode(text)
        except (ValueError, RecursionError):
            # The strict reader finds the same mistake again and words it.
            value = loads_json(text, self._file, number).value
        if not isinstance(value, dict):
            raise self._error(number, None, "is no JSON object", "write one object per step")
        if "true" in text or "false" in text:
            for key, item in value.items():
                if holds_truth(item):
                    raise self._error(number, key, "holds true or false", "write 1 or 0")
        return value

    def _check_keys(self, keys: set[str], number: int) -> None:
        """Hold every step to the keys of the first one."""
        wanted = set(self._rows) if self.steps else {"position", "use_order"}
        for key in sorted(wanted - keys):
            raise self._error(number, key, "is missing", "write it in every step")
        for key in sorted(keys - wanted if self.steps else ()):
            raise self._error(number, key, "is new in this step", "write it in every step")

    def _add_token(self, step: dict[str, Any], number: int) -> None:
        """Take the token of a step and, where given, the one after it."""
        value = step.pop("token", None)
        pair = value if isinstance(value, list) else [value]
        if NEXT_TOKEN in step:
            following = step.pop(NEXT_TOKEN)
            if len(pair) == 1:
                pair = [*pair, following]
            elif len(pair) == 2 and pair[1] != following:
                problem = f"says that {printable(pair[1], 20)} is next, {NEXT_TOKEN} another"
                raise self._error(number, "token", problem, f"write one token id and {NEXT_TOKEN}")
        if len(pair) not in {1, 2} or not all(is_token(item) for item in pair):
            fix = f"write a token id, and the one after it as {NEXT_TOKEN}"
            raise self._error(number, "token", "is missing or no token id", fix)
        if self._next_token is not None and self._next_token != pair[0]:
            problem = f"is {pair[0]}, but the step before says that {self._next_token} is next"
            raise self._error(number, "token", problem, "repair its writer")
        self._token.append(pair[0])
        self._next_token = pair[1] if len(pair) == 2 else None

    def _array(self, key: str, value: Any, number: int) -> NDArray[Any]:
        """Turn a number or nested lists into an array of the schema's type."""
        dtype = array_type(key)
        assert dtype is not None
        four = key in {"use_order", "mass"} or key.startswith("pred_order.")
        if four and filled_cells(value) > CAP_BYTES // _CELL_BYTES:
            problem = f"lists of unequal length: more than {format_bytes(CAP_BYTES)} once filled up"
            raise self._error(number, key, problem, "is this the right file?")
        shape_words = "lists: layer, head, block" if four else "one number"
        try:
            array = np.array(rectangle(value, _FILL.get(key, NO_BLOCK)) if four else value)
        except (ValueError, TypeError, OverflowError):
            array = np.zeros(0)
        if array.ndim != (3 if four else 0) or array.dtype.kind not in "iu":
            fix = f"write {shape_words}, whole numbers only"
            raise self._error(number, key, f"is not {shape_words}", fix)
        info = np.iinfo(dtype)
        if array.size and (array.min() < info.min or array.max() > info.max):
            problem = f"holds a number outside {info.min} .. {info.max}"
            raise self._error(number, key, problem, "repair its writer")
        if four and key != "mass" and array.shape[2] > self._width(key):
            problem = f"lists {array.shape[2]} blocks, the header says {self._width(key)}"
            raise self._error(number, key, problem, "correct stored_blocks")
        rows = self._rows.get("use_order")
        if four and rows and array.shape[:2] != rows[0].shape[:2]:
            problem = f"has {array.shape[0]} layers x {array.shape[1]} heads"
            fix = f"write {rows[0].shape[0]} x {rows[0].shape[1]} as before"
            raise self._error(number, key, problem, fix)
        return array.astype(dtype)


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value


_STEP = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
