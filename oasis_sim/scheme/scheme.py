"""A KV cache scheme as data: what is predicted, fetched, kept and waited for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from oasis_sim.errors import InputError
from oasis_sim.fileio import raise_all
from oasis_sim.scheme.check import contradictions
from oasis_sim.scheme.parts import SchemeParts, exact


@dataclass(frozen=True)
class Scheme(SchemeParts):
    """Combine parts that go together; those that contradict each other raise InputError."""

    def __post_init__(self) -> None:
        """Refuse contradictory parts, all mistakes at once."""
        raise_all([InputError(problem, field=key) for key, problem in contradictions(self)])

    def to_config(self) -> dict[str, str | int | float | bool]:
        """Return the scheme as a scheme file holds it; parts without a value are left out."""
        parts = dataclasses.asdict(self)
        return {key: value for key, value in parts.items() if value not in {None, ""}}

    @property
    def cautions(self) -> tuple[str, ...]:
        """Return what a reader of results should know about the parts."""
        if not self.offload or self.cap_blocks is not None or self.fetch_ratio is None:
            return ()
        return rounded_away(self.fetch_ratio, self.budget_blocks)


def rounded_away(fetch_ratio: float, budget_blocks: int) -> tuple[str, ...]:
    """Say that a ratio above 0 of so few blocks rounds down to none; empty where it does not."""
    if fetch_ratio == 0 or int(exact(fetch_ratio) * budget_blocks):
        return ()
    return (
        f"a fetch ratio of {fetch_ratio:g} x {budget_blocks:,} blocks rounds down to 0: nothing is "
        "ever fetched",
    )
