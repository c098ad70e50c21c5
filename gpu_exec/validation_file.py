"""Read a validation file: its origin and rows, every field checked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from gpu_exec.matrix import ValidationCase
from gpu_exec.validate import STAGE, STEP_TIME, UNIT, Origin, Row
from oasis_sim.errors import InputError
from oasis_sim.fileio import is_number, load_json

MAX_TOKENS = 1 << 20
MAX_BATCH = 1 << 12


def read_validation(path: str | Path) -> tuple[Origin, tuple[Row, ...]]:
    """Return origin and rows of a file that `oasis-sim validate` wrote."""
    document = load_json(path).value
    file = str(path)
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise InputError("has no list of rows", file=file, field="rows")
    names = [field.name for field in dataclasses.fields(Origin)]
    for name in names:
        if not isinstance(document.get(name), str):
            raise InputError("must be text", file=file, field=name)
    rows = tuple(_row(entry, f"rows[{i}]", file) for i, entry in enumerate(document["rows"]))
    if not any(row.metric == STEP_TIME for row in rows):
        raise InputError(f"has no row of {STEP_TIME}", file=file, field="rows")
    return Origin(**{name: document[name] for name in names}), rows


def _row(entry: Any, field: str, file: str) -> Row:
    if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
        raise InputError("has no config", file=file, field=field)
    metric = entry.get("metric")
    if not isinstance(metric, str) or not (metric == STEP_TIME or metric.startswith(STAGE)):
        raise InputError(f"must be {STEP_TIME} or stage.NAME", file=file, field=f"{field}.metric")
    _check_config(entry["config"], f"{field}.config", file)
    numbers = {}
    for name in ("simulated", "measured", "spread_pct", "error_pct"):
        value = entry.get(name)
        if not is_number(value):
            raise InputError("must be a number", file=file, field=f"{field}.{name}")
        numbers[name] = float(value)
    if numbers["measured"] <= 0:
        raise InputError("must be positive", file=file, field=f"{field}.measured")
    clocked = entry.get("clocked")
    if clocked is not None and not is_number(clocked, 0):
        raise InputError("must be a number or null", file=file, field=f"{field}.clocked")
    if entry.get("unit") != UNIT:
        raise InputError(f"must be {UNIT}", file=file, field=f"{field}.unit")
    return Row(entry["config"], metric, UNIT, **numbers, clocked=clocked)


def _check_config(config: dict[str, Any], field: str, file: str) -> None:
    """Refuse a configuration that could not have been written, or would exhaust the memory."""
    try:
        case = ValidationCase.from_config(config)
    except TypeError:
        raise InputError("has missing or unknown keys", file=file, field=field) from None
    limits = {
        "batch": MAX_BATCH,
        "context_tokens": MAX_TOKENS,
        "block_tokens": 4096,
        "budget_tokens": MAX_TOKENS,
    }
    for name, high in limits.items():
        value = getattr(case, name)
        if type(value) is not int or not 1 <= value <= high:
            raise InputError(f"must be 1 to {high}", file=file, field=f"{field}.{name}")
    for name in ("scheme", "transport"):
        if not isinstance(getattr(case, name), str):
            raise InputError("must be text", file=file, field=f"{field}.{name}")
    ratio: Any = case.fetch_ratio
    if ratio is not None and (type(ratio) not in {int, float} or not 0 <= ratio <= 1):
        raise InputError("must be 0 to 1 or all", file=file, field=f"{field}.fetch_ratio")
