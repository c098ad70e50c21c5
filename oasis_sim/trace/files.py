"""Open and save traces: the content decides the format on reading, the suffix on writing."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path

import zstandard

from oasis_sim.errors import UsageError
from oasis_sim.fileio import (
    content_chunks,
    find_input,
    open_regular,
    open_text_lines,
    printable,
    read_bytes,
    unreadable,
    write_atomic,
)
from oasis_sim.trace.build import CAP_BYTES, build_trace, flatten
from oasis_sim.trace.jsonl import dump_jsonl, load_jsonl
from oasis_sim.trace.npz import dump_npz, load_npz
from oasis_sim.trace.trace import AttentionTrace
from oasis_sim.units import GIB

TEXT_CAP_BYTES = 8 * GIB
SUFFIXES = (".npz", ".jsonl", ".jsonl.gz", ".jsonl.zst")
_ZIP_MAGIC = b"PK\x03\x04"
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 12


def load_trace(path_or_name: str | Path) -> AttentionTrace:
    """Read a trace: npz or JSON lines, plain, gzip or zstd.

    A name is looked up beside the user first, then among the shipped traces; both also find the
    compressed file. Raises InputError for what is no valid trace.
    """
    return read_trace(find_input(str(path_or_name), "trace"))


def read_trace(path: str | Path) -> AttentionTrace:
    """Read a trace from a file."""
    file = printable(path)
    with open_regular(path) as raw:
        try:
            magic = raw.read(len(_ZIP_MAGIC))
        except OSError as error:
            raise unreadable(path, error) from None
        if magic == _ZIP_MAGIC:
            raw.seek(0)
            return load_npz(raw, file)
    start = next(iter(content_chunks(path, TEXT_CAP_BYTES)), b"")
    if start.startswith(_ZIP_MAGIC):
        return load_npz(io.BytesIO(read_bytes(path, CAP_BYTES)), file)
    return load_jsonl(open_text_lines(path, TEXT_CAP_BYTES), file)


def save_trace(trace: AttentionTrace, path: str | Path) -> None:
    """Check a trace and write it whole or not at all, in the format of the suffix.

    Suffixes: .npz, .jsonl, .jsonl.gz, .jsonl.zst; the same trace gives the same bytes. Raises
    UsageError for another suffix and InputError for a trace that breaks the schema.
    """
    name = str(path)
    suffix = next((end for end in reversed(SUFFIXES) if name.endswith(end)), None)
    if suffix is None:
        known = ", ".join(SUFFIXES)
        raise UsageError(f"{printable(name)}: the name does not say the format; end it in {known}")
    build_trace(trace.meta, flatten(trace), printable(name))
    if suffix == ".npz":
        write_atomic(path, dump_npz(trace))
    else:
        write_atomic(path, _packed(dump_jsonl(trace), suffix))


def _packed(lines: Iterable[str], suffix: str) -> bytes:
    """Encode lines as UTF-8, compressed as the suffix says, with no date inside."""
    buffer = io.BytesIO()
    if suffix.endswith(".gz"):
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, buffer, mtime=0) as packer:
            for line in lines:
                packer.write(line.encode())
    elif suffix.endswith(".zst"):
        frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
        for line in lines:
            buffer.write(frame.compress(line.encode()))
        buffer.write(frame.flush())
    else:
        for line in lines:
            buffer.write(line.encode())
    return buffer.getvalue()
