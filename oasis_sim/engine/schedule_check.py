"""Checks of a schedule: shapes, ranges, order, cap, and that no slot is written twice.

Nothing here allocates by a number that a file claims: all work is on arrays already in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.schedule_arrays import ScheduleArrays
from oasis_sim.errors import InputError

LIMITS: dict[str, int] = {
    "layers": 4096,
    "kv_heads": 256,
    "tp": 1024,
    "host_blocks": 1 << 24,
    "steps": 1 << 20,
    "columns": 1 << 16,
    "context_tokens": 1 << 28,
}
TRANSPORTS = ("sm_gather", "copy_engine", "naive")
LONGEST_STEP_PS = 10**16
"""As for simulated steps: sums over a schedule's steps stay within floating point's integers."""
_SCHEME_LIMITS = {
    "chosen_blocks": (0, 1 << 16),
    "pool_blocks": (0, 1 << 16),
    "cap_blocks": (0, 1 << 16),
    "block_tokens": (1, 4096),
    "recent_blocks": (0, 1 << 16),
    "sink_blocks": (0, 1 << 16),
}
_MODEL_LIMITS = {
    "layers": (1, 4096),
    "hidden": (1, 1 << 20),
    "intermediate": (1, 1 << 22),
    "query_heads": (1, 4096),
    "kv_heads": (1, 256),
    "head_dim": (1, 4096),
    "vocab": (1, 1 << 24),
    "bytes_per_weight": (1, 8),
    "bytes_per_kv": (1, 8),
}


def check_meta(meta: Mapping[str, Any], file: str | Path | None) -> None:
    """Raise InputError unless the header has every key, typed and in range."""
    for key in ("profile", "engine", "transport"):
        if not isinstance(meta.get(key), str):
            raise InputError("must be a string", file=file, field=f"meta.{key}")
    if meta["transport"] not in TRANSPORTS:
        raise InputError(
            f"must be one of {', '.join(TRANSPORTS)}", file=file, field="meta.transport"
        )
    for key in ("layers", "kv_heads", "host_blocks"):
        _check_int(meta.get(key), (1, LIMITS[key]), f"meta.{key}", file)
    _check_int(meta.get("tp", 1), (1, LIMITS["tp"]), "meta.tp", file)
    for part, limits in (("model", _MODEL_LIMITS), ("scheme", _SCHEME_LIMITS)):
        if not isinstance(meta.get(part), Mapping):
            raise InputError("must be an object", file=file, field=f"meta.{part}")
        for key, bounds in limits.items():
            _check_int(meta[part].get(key), bounds, f"meta.{part}.{key}", file)
    for key in ("layers", "kv_heads"):
        if meta[key] != meta["model"][key]:
            raise InputError(
                f"is {meta[key]}, the model has {meta['model'][key]}",
                file=file,
                field=f"meta.{key}",
            )
    _check_stages(meta.get("stages"), file)


def _check_stages(stages: Any, file: str | Path | None) -> None:
    if not isinstance(stages, list | tuple) or not all(isinstance(name, str) for name in stages):
        raise InputError("must be a list of names", file=file, field="meta.stages")
    if len(set(stages)) != len(stages):
        raise InputError("names repeat", file=file, field="meta.stages")


def _check_collectives(schedule: ScheduleArrays, file: str | Path | None) -> None:
    """Raise InputError unless each step's collectives, if given, are a part of the step."""
    found = schedule.meta.get("collective_ps", [0] * schedule.steps)
    whole = schedule.sim_step_ps.tolist()
    fits = isinstance(found, list) and len(found) == len(whole)
    if not fits or not all(
        type(x) is int and 0 <= x <= y for x, y in zip(found, whole, strict=True)
    ):
        raise InputError(
            "must hold a time for each step, at most as long as the step",
            file=file,
            field="meta.collective_ps",
        )


def check_schedule(schedule: ScheduleArrays, file: str | Path | None) -> None:
    """Raise InputError unless shapes, ranges, order, cap and uniqueness hold."""
    _check_shapes(schedule, file)
    _check_steps(schedule, file)
    _check_collectives(schedule, file)
    if schedule.moves:
        _check_moves(schedule, file)


def _check_int(value: Any, limits: tuple[int, int], field: str, file: str | Path | None) -> None:
    low, high = limits
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"must be an integer from {low} to {high}", file=file, field=field)


def _check_shapes(schedule: ScheduleArrays, file: str | Path | None) -> None:
    steps = schedule.steps
    if schedule.row_request.ndim != 2:
        raise InputError("must have two dimensions", file=file, field="row_request")
    batch, moves = schedule.row_request.shape[1], schedule.move_offset[-1:]
    if steps < 1 or steps > LIMITS["steps"] or batch < 1 or batch > LIMITS["columns"]:
        raise InputError(f"{steps} steps of {batch} columns", file=file, field="step")
    count = int(moves[0]) if moves.ndim == 1 and len(moves) else -1
    expected: dict[str, tuple[int, ...]] = {
        "step": (steps,),
        "rows": (steps,),
        "dense_rows": (steps,),
        "row_request": (steps, batch),
        "context_tokens": (steps, batch),
        "move_offset": (steps * schedule.layers + 1,),
        "move_row": (count,),
        "move_head": (count,),
        "move_block": (count,),
        "move_slot": (count,),
        "sim_step_ps": (steps,),
        "sim_stage_ps": (steps, len(schedule.stages)),
    }
    for name, shape in expected.items():
        actual = getattr(schedule, name).shape
        if actual != shape:
            raise InputError(f"has shape {actual}, must be {shape}", file=file, field=name)


def _check_steps(schedule: ScheduleArrays, file: str | Path | None) -> None:
    offset, rows, dense = schedule.move_offset, schedule.rows, schedule.dense_rows
    if offset[0] != 0 or (offset[1:] < offset[:-1]).any():
        raise InputError("must rise from 0", file=file, field="move_offset")
    if (schedule.step < 0).any() or (np.diff(schedule.step) != 1).any():
        raise InputError("must be consecutive, from 0 or more", file=file, field="step")
    used = rows.astype(np.int64) + dense
    if (rows < 0).any() or (dense < 0).any() or (used > schedule.batch).any():
        raise InputError("rows exceed the columns", file=file, field="rows")
    live = np.arange(schedule.batch)[None, :] < used[:, None]
    if ((schedule.row_request >= 0) != live).any() or (schedule.row_request < -1).any():
        raise InputError("must be -1 in padding only", file=file, field="row_request")
    if _repeats_in_a_row(schedule.row_request):
        raise InputError("a request stands twice in a step", file=file, field="row_request")
    context = schedule.context_tokens
    if (context[live] < 1).any() or (context < 0).any():
        raise InputError("must be 1 or more", file=file, field="context_tokens")
    if (context > LIMITS["context_tokens"]).any():
        raise InputError("too large", file=file, field="context_tokens")
    for name in ("sim_step_ps", "sim_stage_ps"):
        times = getattr(schedule, name)
        if (times < 0).any() or (times > LONGEST_STEP_PS).any():
            problem = f"holds a time outside 0 .. {LONGEST_STEP_PS} ps"
            raise InputError(problem, file=file, field=name, fix="run again")


def _repeats_in_a_row(row_request: npt.NDArray[np.int64]) -> bool:
    ordered = np.sort(row_request, axis=1)
    return bool(((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] >= 0)).any())


def _check_moves(schedule: ScheduleArrays, file: str | Path | None) -> None:
    counts = np.diff(schedule.move_offset)
    group = np.repeat(np.arange(len(counts)), counts)
    row, head = schedule.move_row.astype(np.int64), schedule.move_head.astype(np.int64)
    limits = (
        ("move_row", row, schedule.rows[group // schedule.layers]),
        ("move_head", head, np.int64(schedule.kv_heads)),
        ("move_block", schedule.move_block, np.int64(schedule.host_blocks)),
        ("move_slot", schedule.move_slot, np.int64(schedule.scheme_int("pool_blocks"))),
    )
    for name, values, limit in limits:
        bad = values >= limit
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(f"move {at} is out of range ({values[at]})", file=file, field=name)
    owner = (group * schedule.batch + row) * schedule.kv_heads + head
    rising = np.diff(owner)
    if (rising < 0).any():
        raise InputError("must be ordered by row, then head", file=file, field="move_row")
    starts = np.flatnonzero(np.concatenate(([True], rising > 0)))
    most = int(np.diff(np.append(starts, len(owner))).max())
    if most > schedule.scheme_int("cap_blocks"):
        raise InputError(
            f"{most} blocks for one head in one step exceed the cap of "
            f"{schedule.scheme_int('cap_blocks')}",
            file=file,
            field="move_offset",
        )
    rank = np.cumsum(np.concatenate(([0], (rising > 0).astype(np.int64))))
    _check_unique(rank, schedule.move_slot, "move_slot", file)
    _check_unique(rank, schedule.move_block, "move_block", file)


def _check_unique(
    rank: npt.NDArray[np.int64], values: npt.NDArray[Any], name: str, file: str | Path | None
) -> None:
    """Refuse a value that stands twice within one rank (one head of one row, layer and step)."""
    key = np.sort((rank << 32) | values.astype(np.int64))
    twice = np.diff(key) == 0
    if twice.any():
        value = int(key[int(np.argmax(twice))] & 0xFFFFFFFF)
        raise InputError(f"{value} stands twice for one head in one step", file=file, field=name)
