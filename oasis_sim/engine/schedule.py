"""The transfer schedule: which block of which request goes into which slot, step by step.

A schedule is a window of S steps of a simulated run. Moves are ordered by step, layer, row,
KV head and admission; `move_offset[s * L + l]` is the first move of layer l in step s. A step has
B columns: first its `rows` sparse ones, then its `dense_rows` dense ones, then padding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.npz import dump_npz, load_npz
from oasis_sim.engine.schedule_check import LIMITS, check_meta, check_schedule
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


@dataclass(frozen=True, eq=False)
class Schedule:
    """Hold the block moves of S steps, B columns, L layers, N moves.

    `meta` has the keys format, version, model, scheme, profile, engine, transport, layers,
    kv_heads, host_blocks (host units per request, layer and head that a move may name) and stages.
    `row_request[s, b]` is -1 in padding. `context_tokens[s, b]` counts the tokens that row b has
    when step s starts, the one being decoded included. Times are simulated picoseconds.
    """

    meta: Mapping[str, Any]
    step: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    dense_rows: npt.NDArray[np.int32]
    row_request: npt.NDArray[np.int64]
    context_tokens: npt.NDArray[np.int32]
    move_offset: npt.NDArray[np.int64]
    move_row: npt.NDArray[np.uint16]
    move_head: npt.NDArray[np.uint8]
    move_block: npt.NDArray[np.uint32]
    move_slot: npt.NDArray[np.uint16]
    sim_step_ps: npt.NDArray[np.int64]
    sim_stage_ps: npt.NDArray[np.int64]

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

    @property
    def steps(self) -> int:
        """Number of steps S."""
        return len(self.step)

    @property
    def batch(self) -> int:
        """Number of columns B, the largest batch of the window."""
        return int(self.row_request.shape[1])

    @property
    def moves(self) -> int:
        """Number of moves N."""
        return len(self.move_block)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return int(self.meta["layers"])

    @property
    def kv_heads(self) -> int:
        """KV heads of a layer, all devices together."""
        return int(self.meta["kv_heads"])

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the columns of `sim_stage_ps`."""
        return tuple(self.meta["stages"])

    @property
    def host_blocks(self) -> int:
        """Host units per request, layer and head that moves may name."""
        return int(self.meta["host_blocks"])

    @property
    def transport(self) -> str:
        """How units are moved: sm_gather, copy_engine or naive."""
        return str(self.meta["transport"])

    def scheme_int(self, key: str) -> int:
        """Return an integer of the resolved scheme, such as pool_blocks."""
        return int(self.meta["scheme"][key])

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit: K and V of one block of one head of one layer."""
        model = self.meta["model"]
        return (
            2
            * int(model["head_dim"])
            * int(model["bytes_per_kv"])
            * self.scheme_int("block_tokens")
        )

    def step_moves(self) -> npt.NDArray[np.int64]:
        """Return the number of moves of each step, int64[S]."""
        return np.diff(self.move_offset[:: self.layers])

    def layer_slice(self, step: int, layer: int) -> slice:
        """Return the range of moves of one layer in one step of the window."""
        at = step * self.layers + layer
        return slice(int(self.move_offset[at]), int(self.move_offset[at + 1]))


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


__all__ = ["FORMAT", "LIMITS", "VERSION", "Schedule"]
