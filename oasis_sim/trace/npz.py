"""Trace files in NumPy's archive format, read without trusting them.

``numpy.load`` allocates what a header claims; here every member's claim is checked against the
archive's directory and a cap first. Objects (pickles) are refused. Writing gives the same bytes
for the same trace.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from oasis_sim.errors import InputError
from oasis_sim.fileio import loads_json, printable
from oasis_sim.trace.build import CAP_BYTES, array_type, build_trace, flatten
from oasis_sim.trace.trace import AttentionTrace
from oasis_sim.units import format_bytes

_MOST_DIMENSIONS = 8
_MOST_ITEMS = 1 << 31
_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEADER_CAP_BYTES = 10_000
_META_CAP_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


def dump_npz(trace: AttentionTrace) -> bytes:
    """Return a trace as a compressed archive."""
    members = {"meta": np.array(json.dumps(trace.meta)), **flatten(trace)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in members.items():
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=array.nbytes > 1 << 30) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()


def load_npz(stream: IO[bytes], file: str, cap_bytes: int = CAP_BYTES) -> AttentionTrace:
    """Read and check a trace from an archive; raise InputError for anything else."""
    try:
        with zipfile.ZipFile(stream) as archive:
            members = _members(archive, file, cap_bytes)
            meta = _read_meta(archive, members, file)
            known = {key: info for key, info in members.items() if array_type(key) is not None}
            unknown = sorted(printable(key, 60) for key in set(members) - set(known))
            arrays = {key: _read(archive, info, file) for key, info in known.items()}
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"is damaged or no archive ({printable(error, 120)})",
            file=file,
            fix="copy or write it again",
        ) from None
    dropped = (f"unknown arrays dropped: {', '.join(unknown[:10])}",) if unknown else ()
    return build_trace(meta, arrays, file, dropped)


def _members(archive: zipfile.ZipFile, file: str, cap_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the archive's members by array name; refuse repeated names and too much data."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in found:
            raise InputError("stands twice", file=file, field=printable(name, 60))
        found[name] = info
    total = sum(info.file_size for info in found.values())
    if total > cap_bytes:
        raise InputError(
            f"unpacks to {format_bytes(total)}, more than {format_bytes(cap_bytes)}",
            file=file,
            fix="keep fewer steps, layers or blocks",
        )
    return found


def _read_meta(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], file: str
) -> Mapping[str, Any]:
    """Return the header and take it out of the members."""
    info = members.pop("meta", None)
    if info is None:
        fix = "is this the right file?"
        raise InputError("is missing: this is no trace", file=file, field="meta", fix=fix)
    if info.file_size > _META_CAP_BYTES:
        raise InputError("is too large", file=file, field="meta")
    array = _read(archive, info, file)
    if array.size != 1 or array.dtype.kind != "U":
        fix = "store the header as JSON text"
        raise InputError(f"holds {array.dtype}{array.shape}", file=file, field="meta", fix=fix)
    value = loads_json(str(array.reshape(-1)[0]), f"{file}: meta").value
    if not isinstance(value, dict):
        raise InputError("is no JSON object", file=file, field="meta")
    return value


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> NDArray[Any]:
    """Read one member: first its header against the directory, then its data."""
    name = printable(info.filename.removesuffix(".npy"), 60)
    with archive.open(info) as member:
        shape, by_column, dtype = _header(member, name, file)
        size = math.prod(shape) * dtype.itemsize
        if len(shape) > _MOST_DIMENSIONS:
            raise InputError(f"claims {len(shape)} dimensions", file=file, field=name)
        if not dtype.itemsize or min(shape, default=0) < 0 or max(shape, default=0) > _MOST_ITEMS:
            raise InputError(f"claims the shape {shape} of {dtype}", file=file, field=name)
        if dtype.hasobject or dtype.kind not in "biufU":
            fix = "store plain numbers; pickled objects are never read"
            raise InputError(f"holds {dtype}", file=file, field=name, fix=fix)
        if size > info.file_size:
            problem = f"claims {format_bytes(size)} and stores {format_bytes(info.file_size)}"
            raise InputError(problem, file=file, field=name)
        array: NDArray[Any] = np.empty(math.prod(shape), dtype=dtype)
        filled = _fill(member, array.view(np.uint8)) if size else 0
        rest = member.read(1)
    if filled != size or rest:
        raise InputError(f"does not have the {size} bytes of its shape", file=file, field=name)
    try:
        return array.reshape(shape, order="F" if by_column else "C")
    except ValueError:  # nothing in it, and dimensions whose product overflows
        raise InputError(f"claims the shape {shape}", file=file, field=name) from None


def _fill(member: IO[bytes], place: NDArray[np.uint8]) -> int:
    """Read into memory piece by piece, so that nothing is held twice; return the bytes read."""
    filled = 0
    while filled < len(place):
        piece = member.read(min(_PIECE_BYTES, len(place) - filled))
        if not piece:
            break
        place[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        filled += len(piece)
    return filled


def _header(member: IO[bytes], name: str, file: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type that a member's own header claims."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(member)
        return readers[version](member, max_header_size=_HEADER_CAP_BYTES)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError):
        fix = "write it with numpy.savez"
        raise InputError("is no NumPy array", file=file, field=name, fix=fix) from None
