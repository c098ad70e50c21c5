"""Text files line by line, capped in size and in line length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oasis_sim.errors import InputError
from oasis_sim.fileio.streams import content_chunks
from oasis_sim.fileio.text import printable
from oasis_sim.units import MIB, format_bytes

DEFAULT_LINE_CAP_BYTES = 64 * MIB
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextLines:
    """Iterate over (line number from 1, line without its end) of a UTF-8 text file.

    A byte-order mark is dropped, CRLF and LF both end a line, gzip and zstd are decompressed.
    After the iteration `unterminated` says whether the last line lacked its line end, which is
    how a cut-off file looks. Raise InputError for binary content, a wrong encoding and lines
    above the cap.
    """

    def __init__(self, path: str | Path, cap_bytes: int, line_cap_bytes: int) -> None:
        """Remember what to read; nothing is opened before the iteration."""
        self.path = path
        self.unterminated = False
        self._cap_bytes = cap_bytes
        self._line_cap_bytes = line_cap_bytes

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Read the file from its start."""
        number = 0
        pending: list[bytes] = []
        pending_bytes = 0
        for chunk in content_chunks(self.path, self._cap_bytes):
            *ended, rest = chunk.split(b"\n")
            for piece in ended:
                number += 1
                pending.append(piece)
                yield number, self._decode(b"".join(pending), number)
                pending, pending_bytes = [], 0
            pending.append(rest)
            pending_bytes += len(rest)
            self._check_length(pending_bytes, number + 1)
        last = b"".join(pending)
        if last == _BYTE_ORDER_MARK and number == 0:
            last = b""
        self.unterminated = bool(last)
        if last:
            yield number + 1, self._decode(last, number + 1)

    def _decode(self, raw: bytes, number: int) -> str:
        self._check_length(len(raw), number)
        if b"\0" in raw:
            raise self._error("holds binary data", number, "name a text file")
        if number == 1:
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        try:
            return raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("is not UTF-8 text", number, "save the file as UTF-8") from None

    def _check_length(self, length: int, number: int) -> None:
        if length > self._line_cap_bytes:
            limit = format_bytes(self._line_cap_bytes)
            raise self._error(f"line is longer than {limit}", number, "is this the right file?")

    def _error(self, problem: str, number: int, fix: str) -> InputError:
        return InputError(problem, file=printable(self.path), line=number, fix=fix)


def open_text_lines(
    path: str | Path, cap_bytes: int, line_cap_bytes: int = DEFAULT_LINE_CAP_BYTES
) -> TextLines:
    """Return the lines of a text file as (number, text) pairs; see TextLines."""
    return TextLines(path, cap_bytes, line_cap_bytes)
