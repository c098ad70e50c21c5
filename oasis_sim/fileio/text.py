"""Names of files and fields as they may stand in a message."""

from __future__ import annotations

from oasis_sim.text import plain


def printable(text: object, limit: int = 240) -> str:
    """Return a name on one line, harmless for a terminal, cut to `limit` characters."""
    shown = plain(str(text))
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
