"""Several mistakes of one input as one error, and hints at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from oasis_sim.errors import InputError

_GUESS_LENGTH = 60


class MistakesError(InputError):
    """Report several mistakes of one input at once; `mistakes` holds them one by one."""

    def __init__(self, mistakes: Sequence[InputError]) -> None:
        """Join the mistakes, numbered, into one message."""
        self.mistakes = tuple(mistakes)
        lines = "".join(f"\n  ({index}) {mistake}" for index, mistake in enumerate(mistakes, 1))
        super().__init__(f"{len(mistakes)} mistakes:{lines}", file=mistakes[0].file)


def raise_all(mistakes: Sequence[InputError]) -> None:
    """Raise one InputError that lists all mistakes; do nothing when there are none."""
    if not mistakes:
        return
    if len(mistakes) == 1:
        raise mistakes[0]
    raise MistakesError(mistakes)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest known name, or nothing."""
    lowered = {item.lower(): item for item in known if len(item) <= _GUESS_LENGTH}
    near = difflib.get_close_matches(name.lower()[:_GUESS_LENGTH], list(lowered), n=1)
    return f"; did you mean {lowered[near[0]]!r}?" if near else ""
