"""Rows of a report, and what they are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """Hold one line: what, how much, and what it rests on."""

    label: str
    value: str
    detail: str = ""
