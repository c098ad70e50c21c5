"""A bench that answers from recorded readings: derive a profile again without a GPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_exec.probes import Card, GapProbe, LinkProbe, Nodes, Probe, ReadProbe, StepProbe
from gpu_exec.validate import Origin
from oasis_sim.errors import InputError
from oasis_sim.fileio import is_number, load_json

FORMAT = "oasis-calibration"
VERSION = 1
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (StepProbe, LinkProbe, ReadProbe, GapProbe)
}
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


class RecordedBench:
    """Answer each probe with rounds of its recorded median and spread.

    A probe without a reading raises InputError.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the raw file that `oasis-sim calibrate --raw` wrote."""
        document = load_json(path).value
        self._file = str(path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise self._wrong("format", f"is not {FORMAT}")
        if document.get("version") != VERSION:
            raise self._wrong("version", f"must be {VERSION}")
        self.card = self._record(Card, document.get("card"), "card")
        self.nodes = self._record(Nodes, document.get("nodes"), "nodes")
        names = [field.name for field in dataclasses.fields(Origin)]
        self.origin: Origin = self._record(Origin, {n: document.get(n) for n in names}, "origin")
        readings = document.get("readings")
        if not isinstance(readings, list):
            raise self._wrong("readings", "must be a list")
        self._rounds = dict(self._reading(entry, i) for i, entry in enumerate(readings))

    def measure_ms(self, probe: Probe) -> float:
        """Return the next round of a probe."""
        if probe not in self._rounds:
            raise self._wrong(
                "readings", f"hold no reading of {probe}", "calibrate on the card again"
            )
        return next(self._rounds[probe])

    def _reading(self, entry: Any, index: int) -> tuple[Probe, Iterator[float]]:
        field = f"readings[{index}]"
        if not isinstance(entry, dict) or entry.get("probe") not in _KINDS:
            raise self._wrong(field, "names no probe")
        value = self._number(entry, "median_ms", field)
        half = value * self._number(entry, "spread_pct", field, zero=True) / 200.0
        kind = _KINDS[entry["probe"]]
        names = [part.name for part in dataclasses.fields(kind)]
        probe: Probe = self._record(kind, {name: entry.get(name) for name in names}, field)
        return probe, itertools.cycle((value, value - half, value + half))

    def _number(self, entry: dict[str, Any], key: str, field: str, *, zero: bool = False) -> float:
        value: Any = entry.get(key)
        if not is_number(value, 0) or (value == 0 and not zero):
            raise self._wrong(f"{field}.{key}", "must be 0 or more" if zero else "must be positive")
        return float(value)

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
                raise self._wrong(f"{field}.{part.name}", f"must be {part.type}")
            checked[part.name] = value
        return kind(**checked)

    def _wrong(self, field: str, problem: str, fix: str | None = None) -> InputError:
        return InputError(problem, file=self._file, field=field, fix=fix)
