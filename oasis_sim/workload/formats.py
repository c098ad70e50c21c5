"""Named formats of request files. A unit is never guessed: the format says it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from oasis_sim.fileio import LARGEST_EXACT, is_number, printable
from oasis_sim.units import PS_PER_MS, PS_PER_S
from oasis_sim.workload.workload import LARGEST_TOKENS


class BadValueError(Exception):
    """Report a value that cannot be used: the problem and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        """Keep both parts."""
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


@dataclass(frozen=True)
class RequestFormat:
    """Name the columns of a request file and the meaning of its time stamps.

    `arrival` turns a cell into picoseconds. `others` are columns of the format that do not
    matter here. `hash_block_tokens` > 0: rows may list prefix hashes, one per so many tokens.
    `zero_output_fails`: a request without output tokens failed where it was recorded; it is
    dropped and counted.
    """

    is_json: bool
    arrival_column: str
    prompt_column: str
    output_column: str
    arrival: Callable[[Any], int]
    time_unit: str
    others: frozenset[str] = field(default=frozenset())
    hash_block_tokens: int = 0
    zero_output_fails: bool = False

    @property
    def needed(self) -> tuple[str, str, str]:
        """List the columns that every row must have."""
        return self.arrival_column, self.prompt_column, self.output_column


_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
)
_COUNT = re.compile(r"[+-]?[0-9]{1,18}")
_DATE_TIME = re.compile(
    r"(?P<whole>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,12}))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def tokens(value: Any, *, low: int = 1) -> int:
    """Return a token count of a JSON row or CSV cell."""
    if isinstance(value, str):
        raise BadValueError(f"{printable(value, 40)!r} is text", "write a whole number")
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValueError(f"{_shown(value)} is not a whole number", "write a count of tokens")
    if not low <= value <= LARGEST_TOKENS:
        raise BadValueError(f"{_shown(value)} is out of range", f"use {low} to {LARGEST_TOKENS}")
    return value


def cell_number(cell: str) -> Any:
    """Read a CSV cell as a number where it is one, else leave the text for the checks."""
    if _COUNT.fullmatch(cell):
        return int(cell)
    return float(cell) if _NUMBER.fullmatch(cell) else cell


def _number_of(unit_ps: int) -> Callable[[Any], int]:
    """Return a reader of numeric timestamps in a unit of so many picoseconds."""

    def read(value: Any) -> int:
        if isinstance(value, str):
            raise BadValueError(f"{printable(value, 40)!r} is text", "write a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(f"{_shown(value)} is not a number", "write a time")
        if not is_number(value, 0, LARGEST_EXACT):
            raise BadValueError(f"{_shown(value)} is out of range", "use 0 or more")
        # The decimal that was written, not the nearest binary number: 8461.3 s is exact.
        return round(Decimal(repr(value)) * unit_ps)

    return read


def _date_time(value: Any) -> int:
    """Read ``2023-11-16 18:17:03.9799600``, UTC unless a zone is given."""
    match = _DATE_TIME.fullmatch(value) if isinstance(value, str) else None
    fix = "write it as 2023-11-16 18:17:03.9799600"
    if match is None:
        raise BadValueError(f"{_shown(value)} is not a date and time", fix)
    try:
        moment = datetime.fromisoformat(match["whole"]).replace(tzinfo=UTC)
    except ValueError as error:
        raise BadValueError(f"{_shown(value)} is no date and time ({error})", fix) from None
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - _zone_seconds(match["zone"])
    return seconds * PS_PER_S + int((match["fraction"] or "").ljust(12, "0"))


def _zone_seconds(zone: str | None) -> int:
    if zone in {None, "Z"}:
        return 0
    assert zone is not None
    seconds = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return -seconds if zone[0] == "-" else seconds


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(printable(value, 40))
    return "null" if value is None else printable(value, 40)


_SECONDS = _number_of(PS_PER_S)
_MILLISECONDS = _number_of(PS_PER_MS)

FORMATS: dict[str, RequestFormat] = {
    "mooncake": RequestFormat(
        is_json=True,
        arrival_column="timestamp",
        prompt_column="input_length",
        output_column="output_length",
        arrival=_MILLISECONDS,
        time_unit="ms",
        others=frozenset({"hash_ids", "block_size"}),
        hash_block_tokens=512,
    ),
    "azure": RequestFormat(
        is_json=False,
        arrival_column="TIMESTAMP",
        prompt_column="ContextTokens",
        output_column="GeneratedTokens",
        arrival=_date_time,
        time_unit="date and time",
    ),
    "burstgpt": RequestFormat(
        is_json=False,
        arrival_column="Timestamp",
        prompt_column="Request tokens",
        output_column="Response tokens",
        arrival=_SECONDS,
        time_unit="s",
        others=frozenset({"Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"}),
        zero_output_fails=True,
    ),
    "vidur": RequestFormat(
        is_json=False,
        arrival_column="arrived_at",
        prompt_column="num_prefill_tokens",
        output_column="num_decode_tokens",
        arrival=_SECONDS,
        time_unit="s",
        others=frozenset({"num_total_tokens", "pd_ratio"}),
    ),
    "bailian": RequestFormat(
        is_json=True,
        arrival_column="timestamp",
        prompt_column="input_length",
        output_column="output_length",
        arrival=_SECONDS,
        time_unit="s",
        others=frozenset({"chat_id", "parent_chat_id", "type", "turn", "hash_ids", "block_size"}),
        hash_block_tokens=16,
    ),
    "csv": RequestFormat(
        is_json=False,
        arrival_column="arrival_s",
        prompt_column="prompt_tokens",
        output_column="output_tokens",
        arrival=_SECONDS,
        time_unit="s",
    ),
}
