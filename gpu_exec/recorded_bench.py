"""A bench that answers from recorded readings: derive a profile again without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_exec.probes import Card, GapProbe, LinkProbe, Probe, ReadProbe, StageProbe, StepProbe
from gpu_exec.validate import Origin
from oasis_sim.errors import InputError
from oasis_sim.fileio import is_number, load_json, printable

FORMAT = "oasis-calibration"
VERSION = 2
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (StepProbe, StageProbe, LinkProbe, ReadProbe, GapProbe)
}
_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e6
_BOUNDS: dict[str, tuple[int, int]] = {"sms": (1, 10_000), "hbm_bytes": (10**6, 10**15)}
"""Of what the driver says, as hardware profiles bound it."""
_FOUND = ("probe", "value_ms", "repeat_pct", "rounds_ms")
"""Keys of a reading that are no parameters of its probe; its value is derived from its rounds."""
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "tuple[str, ...]": "a list of texts",
}


class RecordedBench:
    """Answer each probe with its recorded rounds, in order.

    A probe without a reading, or without so many rounds, raises InputError.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the raw file that `oasis-sim calibrate --raw` wrote."""
        document = load_json(path).value
        self._file = str(path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise self._wrong("format", f"is not {FORMAT}")
        if document.get("version") != VERSION:
            found = printable(str(document.get("version")), 20)
            fix = "calibrate on the card again"
            raise self._wrong("version", f"is {found}, and must be {VERSION}", fix)
        self.card = self._record(Card, document.get("card"), "card")
        names = [field.name for field in dataclasses.fields(Origin)]
        self.origin: Origin = self._record(Origin, {n: document.get(n) for n in names}, "origin")
        readings = document.get("readings")
        if not isinstance(readings, list):
            raise self._wrong("readings", "must be a list")
        self._rounds: dict[Probe, Iterator[float]] = {}
        for i, entry in enumerate(readings):
            probe, rounds = self._reading(entry, i)
            if probe in self._rounds:
                raise self._wrong(f"readings[{i}]", f"repeats that of {probe}", "keep one of them")
            self._rounds[probe] = rounds

    def measure_ms(self, probe: Probe, _length: int) -> float:
        """Return the next round of a probe; its length is that of the recorded one."""
        found = next(self._rounds.get(probe, iter(())), None)
        if found is None:
            what = "no more rounds" if probe in self._rounds else "no reading"
            raise self._wrong("readings", f"hold {what} of {probe}", "calibrate on the card again")
        return found

    def _reading(self, entry: Any, index: int) -> tuple[Probe, Iterator[float]]:
        field = f"readings[{index}]"
        name = entry.get("probe") if isinstance(entry, dict) else None
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise self._wrong(field, "names no probe")
        rounds = entry.get("rounds_ms")
        good = isinstance(rounds, list) and rounds
        if not good or not all(is_number(ms, _SHORTEST_MS, _LONGEST_MS) for ms in rounds):
            allowed = f"numbers from {_SHORTEST_MS:g} to {_LONGEST_MS:g}"
            raise self._wrong(f"{field}.rounds_ms", f"must be a list of {allowed}, not empty")
        names = [part.name for part in dataclasses.fields(kind)]
        for key in entry:
            if key not in names and key not in _FOUND:
                raise self._wrong(f"{field}.{printable(key, 40)}", f"is no key of a {name}")
        probe: Probe = self._record(kind, {name: entry.get(name) for name in names}, field)
        return probe, iter([float(value) for value in rounds])

    def _record(self, kind: type[Any], values: Any, field: str) -> Any:
        """Build a frozen record from plain values whose types match its annotations."""
        if not isinstance(values, dict):
            raise self._wrong(field, "must be an object")
        checked = {}
        for part in dataclasses.fields(kind):
            value = values.get(part.name)
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                value = tuple(value)
            if type(value) not in _TYPES.get(str(part.type), (tuple,)):
                raise self._wrong(f"{field}.{part.name}", f"must be {_NAMES[str(part.type)]}")
            bounds = _BOUNDS.get(part.name)
            if bounds is not None and not is_number(value, *bounds):
                raise self._wrong(f"{field}.{part.name}", "must be {} to {}".format(*bounds))
            checked[part.name] = value
        return kind(**checked)

    def _wrong(self, field: str, problem: str, fix: str | None = None) -> InputError:
        return InputError(problem, file=self._file, field=field, fix=fix)
