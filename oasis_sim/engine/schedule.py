"""The transfer schedule: which block of which request goes into which slot, step by step.

`schedule_arrays` says what it holds. Here it is built, checked, read and written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.npz import dump_npz, load_npz
from oasis_sim.engine.schedule_arrays import ScheduleArrays
from oasis_sim.engine.schedule_check import check_meta, check_schedule
from oasis_sim.errors import InputError
from oasis_sim.fileio import write_atomic

FORMAT = "oasis-schedule"
VERSION = 1
CAP_BYTES = 2 << 30
META_CAP_CHARS = 1 << 20

_DTYPES: dict[str, str] = {
    "step": "<i8",
    "rows": "<i4",
    "dense_rows": "<i4",
    "row_request": "<i8",
    "context_tokens": "<i4",
    "move_offset": "<i8",
    "move_row": "<u2",
    "move_head": "|u1",
    "move_block": "<u4",
    "move_slot": "<u2",
    "sim_step_ps": "<i8",
    "sim_stage_ps": "<i8",
}


class Schedule(ScheduleArrays):
    """A schedule whose ranges, order and cap hold."""

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], **arrays: npt.ArrayLike) -> Schedule:
        """Build and check a schedule; arrays are cast only where no value changes.

        Raises InputError for a missing or unknown array, a lossy cast, or a failed check.
        """
        if set(arrays) != set(_DTYPES):
            odd = sorted(set(arrays) ^ set(_DTYPES))
            raise InputError(f"missing or unknown arrays: {', '.join(odd)}", field="schedule")
        cast = {name: _cast(name, arrays[name]) for name in _DTYPES}
        schedule = cls(meta={"format": FORMAT, "version": VERSION, **meta}, **cast)
        schedule.check()
        return schedule

    @classmethod
    def load(cls, path: str | Path) -> Schedule:
        """Read and check a schedule file; raises InputError saying what is wrong with it."""
        arrays = load_npz(path, ["meta", *_DTYPES], CAP_BYTES)
        meta = _parse_meta(arrays.pop("meta"), path)
        for name, dtype in _DTYPES.items():
            if arrays[name].dtype != np.dtype(dtype):
                raise InputError(
                    f"is {arrays[name].dtype}, must be {np.dtype(dtype)}", file=path, field=name
                )
        schedule = cls(meta=meta, **arrays)
        schedule.check(path)
        return schedule

    def save(self, path: str | Path) -> None:
        """Write the schedule atomically; the same schedule gives the same bytes."""
        write_atomic(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the bytes of the schedule's file."""
        text = json.dumps(self.meta, sort_keys=True, separators=(",", ":"), allow_nan=False)
        arrays: dict[str, npt.NDArray[Any]] = {"meta": np.array(text)}
        arrays.update({name: getattr(self, name) for name in _DTYPES})
        return dump_npz(arrays)

    def check(self, file: str | Path | None = None) -> None:
        """Raise InputError unless every range, order and cap of the schedule holds."""
        check_meta(self.meta, file)
        check_schedule(self, file)


def _cast(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(values)
    target = np.dtype(_DTYPES[name])
    if array.dtype == target:
        return np.ascontiguousarray(array)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"is {array.dtype}, must be integer", field=name)
    info = np.iinfo(target)
    if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
        raise InputError(f"values exceed {target}", field=name)
    return np.ascontiguousarray(array.astype(target))


def _parse_meta(array: npt.NDArray[Any], path: str | Path) -> dict[str, Any]:
    if array.dtype.kind != "U" or array.shape != ():
        raise InputError("must be one string", file=path, field="meta")
    if array.dtype.itemsize // 4 > META_CAP_CHARS:
        raise InputError(f"longer than {META_CAP_CHARS} characters", file=path, field="meta")
    try:
        meta = json.loads(str(array[()]), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON ({error})", file=path, field="meta") from None
    if not isinstance(meta, dict):
        raise InputError("must be an object", file=path, field="meta")
    if meta.get("format") != FORMAT or meta.get("version") != VERSION:
        raise InputError(
            f"is not {FORMAT} version {VERSION}", file=path, field="meta", fix="run again"
        )
    return meta


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
