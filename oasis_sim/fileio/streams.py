"""Capped reading of plain, gzip and zstd files; what a file is, its first bytes decide.

Every reader here raises InputError with the file's name for what cannot be read: a missing
file, a directory or device, a file without permission, a corrupt or cut-off compressed stream,
and content above the cap (so that a small compressed file cannot fill the memory).
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import zstandard

from oasis_sim.errors import InputError
from oasis_sim.fileio.text import printable
from oasis_sim.units import MIB, format_bytes

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = MIB
# A zstd block of a few bytes can hold 128 KiB of content; small bites of input bound the output.
_ZSTD_BITE_BYTES = 1024
_ZSTD_WINDOW_BYTES = 128 * MIB


def read_bytes(path: str | Path, cap_bytes: int) -> bytes:
    """Return the content of a file, decompressed when it is gzip or zstd, at most cap_bytes."""
    return b"".join(content_chunks(path, cap_bytes))


def content_chunks(path: str | Path, cap_bytes: int) -> Iterator[bytes]:
    """Yield the (decompressed) content of a file in pieces, at most cap_bytes together."""
    total = 0
    with open_regular(path) as file:
        try:
            for chunk in _decompressed(file):
                total += len(chunk)
                if total > cap_bytes:
                    raise InputError(
                        f"content is larger than {format_bytes(cap_bytes)}",
                        file=printable(path),
                        fix="use a smaller file",
                    )
                yield chunk
        except (zlib.error, zstandard.ZstdError, _CutOffError) as error:
            raise InputError(
                f"compressed data is corrupt or cut off ({error})",
                file=printable(path),
                fix="copy the file again",
            ) from None
        except OSError as error:
            raise unreadable(path, error) from None


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading; refuse directories, pipes and devices."""
    try:
        # Non-blocking, so that a named pipe without a writer is refused instead of awaited.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise InputError(f"is {what}", file=printable(path), fix="name a file")


def unreadable(path: str | Path, error: Exception) -> InputError:
    """Turn an operating-system error on reading into an InputError."""
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", file=printable(path), fix="check the name")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot be read ({reason})", file=printable(path))


class _CutOffError(Exception):
    """Report a compressed stream that ends before its end mark."""


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return _gunzip(file)
    if magic == _ZSTD_MAGIC:
        return _unzstd(file)
    return iter(lambda: file.read(_CHUNK_BYTES), b"")


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of all members of a gzip file; zero padding at the end is allowed."""
    member = zlib.decompressobj(wbits=31)
    data = file.read(_CHUNK_BYTES)
    while True:
        chunk = member.decompress(data, _CHUNK_BYTES)
        if chunk:
            yield chunk
        if member.eof:
            data = (member.unused_data or file.read(_CHUNK_BYTES)).lstrip(b"\0")
            while not data:
                data = file.read(_CHUNK_BYTES)
                if not data:
                    return
                data = data.lstrip(b"\0")
            member = zlib.decompressobj(wbits=31)
            continue
        data = member.unconsumed_tail or file.read(_CHUNK_BYTES)
        if not data and not chunk:
            raise _CutOffError("the gzip stream has no end")


def _unzstd(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of all frames of a zstd file."""
    reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    frame = reader.decompressobj()
    data = file.read(_ZSTD_BITE_BYTES)
    while data:
        chunk = frame.decompress(data)
        if chunk:
            yield chunk
        data = frame.unused_data if frame.eof else b""
        data = data or file.read(_ZSTD_BITE_BYTES)
        if frame.eof and data:
            frame = reader.decompressobj()
    if not frame.eof:
        raise _CutOffError("the zstd stream has no end")
