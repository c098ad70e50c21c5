"""Read and write NumPy archives without trusting them.

`numpy.load` allocates what a header claims and follows pickles when told to. Here every member's
claimed size is checked against the archive's directory and against a cap before any allocation,
object arrays are refused, and writing gives the same bytes for the same arrays.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from oasis_sim.errors import InputError
from oasis_sim.fileio import open_regular, printable

Array = npt.NDArray[Any]
HEADER_CAP_BYTES = 4096
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '(?P<type>[<|](?:[iu][1248]|f[248]|U\d{1,8}))', "
    rb"'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,19},? ?){0,4})\), \} *\n"
)
_FIX = "write the file again with `oasis-sim run`"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def dump_npz(arrays: Mapping[str, Array]) -> bytes:
    """Return an uncompressed archive of the arrays; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            info.external_attr = 0o644 << 16
            member = io.BytesIO()
            np.lib.format.write_array(
                member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False
            )
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def load_npz(path: str | Path, names: Iterable[str], cap_bytes: int) -> dict[str, Array]:
    """Read exactly the named arrays of an archive, at most `cap_bytes` of data in all.

    Raises InputError for anything but a regular file holding these plain arrays.
    """
    file = printable(path)
    wanted = list(names)
    try:
        with open_regular(path) as raw, zipfile.ZipFile(_capped(raw, file, cap_bytes)) as archive:
            members = _members(archive, wanted, file, cap_bytes)
            return {name: _read_member(archive, members[name], file) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"damaged archive ({error})", file=file, fix=_FIX) from None


def _capped(raw: IO[bytes], file: str, cap_bytes: int) -> IO[bytes]:
    size = os.fstat(raw.fileno()).st_size
    if size > cap_bytes:
        raise InputError(f"{size} bytes exceed the cap of {cap_bytes}", file=file)
    return raw


def _members(
    archive: zipfile.ZipFile, wanted: list[str], file: str, cap_bytes: int
) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name not in wanted or name in found or not info.filename.endswith(".npy"):
            raise InputError("unexpected or repeated array", file=file, field=name[:80], fix=_FIX)
        found[name] = info
        total += info.file_size
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InputError(f"arrays are missing: {', '.join(missing)}", file=file, fix=_FIX)
    if total > cap_bytes:
        raise InputError(f"{total} bytes unpacked exceed the cap of {cap_bytes}", file=file)
    return found


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> Array:
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as member:
        dtype, shape, data_offset = _header(member, name, file)
        count = math.prod(shape)
        size = count * dtype.itemsize
        if data_offset + size != info.file_size:
            raise InputError(
                f"shape {shape} of {dtype} does not match {info.file_size} stored bytes",
                file=file,
                field=name,
                fix=_FIX,
            )
        data = member.read(size)
    if len(data) != size:
        raise InputError("truncated array", file=file, field=name, fix=_FIX)
    return np.frombuffer(data, dtype=dtype, count=count).reshape(shape)


def _header(member: IO[bytes], name: str, file: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return type, shape and length of the header of one array; refuse all but plain numbers."""
    lead = member.read(10)
    length = int.from_bytes(lead[8:10], "little")
    if lead[:8] != _MAGIC or length > HEADER_CAP_BYTES:
        raise InputError("is not an array of format 1.0", file=file, field=name, fix=_FIX)
    match = _HEADER.fullmatch(member.read(length))
    if match is None:
        raise InputError("bad array header or type", file=file, field=name, fix=_FIX)
    shape = tuple(int(extent) for extent in match["shape"].split(b",") if extent.strip())
    if match["order"] == b"True" and len(shape) > 1:
        raise InputError("column-major arrays are refused", file=file, field=name, fix=_FIX)
    return np.dtype(match["type"].decode()), shape, 10 + length
