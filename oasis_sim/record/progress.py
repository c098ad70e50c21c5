"""Progress of a recording on standard error, with the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

ProgressCallback = Callable[[str, int, int], None]
"""Called with (stage, done, total); done == total ends the stage."""

_REFRESH_S = 0.2
_LINE_WIDTH = 72


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


class ProgressLines:
    """Write progress to a stream: one moving line on a terminal, else a line per stage."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to a stream; ``clock`` returns seconds."""
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._stage = ""
        self._started_s = 0.0
        self._shown_s = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of a stage are finished."""
        now_s = self._clock()
        if stage != self._stage:
            self._stage, self._started_s, self._shown_s = stage, now_s, now_s - _REFRESH_S
        elapsed_s = now_s - self._started_s
        if done >= total:
            self._write(f"{stage}: {total} of {total}, {elapsed_s:.1f} s", "\n")
            self._stage = ""
        elif self._terminal and now_s - self._shown_s >= _REFRESH_S:
            self._shown_s = now_s
            left = f", {elapsed_s / done * (total - done):.0f} s left" if done else ""
            self._write(f"{stage}: {done} of {total}{left}", "")

    def _write(self, text: str, end: str) -> None:
        start = "\r" if self._terminal else ""
        self._stream.write(f"{start}{text:<{_LINE_WIDTH}}".rstrip(" " if end else "") + end)
        self._stream.flush()
