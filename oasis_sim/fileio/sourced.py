"""Numbers of profiles: each with its source, and curves as two lists of the same length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from oasis_sim.curve import Curve
from oasis_sim.fileio.fields import Fields

Quantity = TypeVar("Quantity", int, float)


@dataclass(frozen=True)
class SourcedFields:
    """Read pairs of `value` and `source` below one section; note each source under its path.

    `path` begins the name of each source ("gpu", then "gpu.sms"); empty for the top of a file.
    """

    fields: Fields
    sources: dict[str, str] = field(default_factory=dict)
    path: str = ""

    def quantity(
        self, key: str, parse: Callable[[str], Quantity], within: tuple[str, str]
    ) -> Quantity:
        """Return a quantity with its unit in words, within bounds spelt the same way."""
        return self._entry(key).quantity("value", parse, within=within)

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a whole number from low to high."""
        return self._entry(key).integer("value", low=low, high=high)

    def child(self, key: str) -> SourcedFields:
        """Return the section under a key."""
        return SourcedFields(self.fields.child(key), self.sources, self._name(key))

    def note(self, key: str, entry: Fields) -> None:
        """Note the source of an entry that is read by other means."""
        self.sources[self._name(key)] = entry.text("source")

    def _entry(self, key: str) -> Fields:
        entry = self.fields.child(key)
        self.note(key, entry)
        return entry

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def read_curve(fields: Fields, name: str, x: Sequence[float], y: Sequence[float]) -> Curve:
    """Build a curve from two lists, noting a mistake at `name` where they do not fit together.

    An empty list is what the getters of `Fields` return after a mistake, which is noted then.
    """
    if not x or not y:
        return Curve.constant(1.0)
    if len(x) != len(y):
        problem = f"has {len(x)} points for {len(y)} values"
        return fields.mistake(name, problem, "give as many", Curve.constant(1.0))
    if any(b <= a for a, b in zip((0.0, *x), x, strict=False)):
        problem = "must be positive and increase from point to point"
        return fields.mistake(name, problem, "sort the points", Curve.constant(1.0))
    return Curve(tuple(float(v) for v in x), tuple(float(v) for v in y))
