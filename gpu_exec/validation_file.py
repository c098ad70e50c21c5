"""Read a validation file: its origin and rows, every field checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_exec.calibration_points import TRANSFER_COUNTS
from gpu_exec.matrix import DENSE, SPARSE, ValidationCase
from gpu_exec.validate import STAGE, STEP_TIME, UNIT, Origin, Row
from oasis_sim.engine.result import STAGES
from oasis_sim.errors import InputError
from oasis_sim.fileio import is_number, load_json

TRANSPORTS = tuple(TRANSFER_COUNTS)
MAX_TOKENS = 1 << 20
MAX_BATCH = 1 << 12
_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e6


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
    if not rows:
        raise InputError("is empty", file=file, field="rows")
    _check_once(rows, file)
    return Origin(**{name: document[name] for name in names}), rows


def _row(entry: Any, field: str, file: str) -> Row:
    if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
        raise InputError("has no config", file=file, field=field)
    metric = entry.get("metric")
    if not isinstance(metric, str) or not _is_metric(metric):
        problem = f"must be {STEP_TIME} or {STAGE}NAME, NAME a stage or several joined by +"
        raise InputError(problem, file=file, field=f"{field}.metric")
    _check_config(entry["config"], f"{field}.config", file)
    numbers = {}
    for name in ("simulated", "measured", "spread_pct", "error_pct"):
        value = entry.get(name)
        if not is_number(value):
            raise InputError("must be a number", file=file, field=f"{field}.{name}")
        numbers[name] = float(value)
    clocked = entry.get("clocked")
    for name, ms in (("measured", numbers["measured"]), ("clocked", clocked)):
        if ms is not None and not is_number(ms, _SHORTEST_MS, _LONGEST_MS):
            problem = f"must be a number from {_SHORTEST_MS:g} to {_LONGEST_MS:g}"
            raise InputError(problem, file=file, field=f"{field}.{name}")
    if numbers["spread_pct"] < 0:
        raise InputError("must not be negative", file=file, field=f"{field}.spread_pct")
    if entry.get("unit") != UNIT:
        raise InputError(f"must be {UNIT}", file=file, field=f"{field}.unit")
    return Row(entry["config"], metric, UNIT, **numbers, clocked=clocked)


def _is_metric(metric: str) -> bool:
    """Tell whether rows may be of this metric: the step, or stages that schedules know."""
    stages = metric.removeprefix(STAGE).split("+")
    return metric == STEP_TIME or (metric.startswith(STAGE) and set(stages) <= set(STAGES))


def _check_once(rows: Sequence[Row], file: str) -> None:
    """Refuse a configuration that a metric is given of twice, or that has stages without a step."""
    seen: set[tuple[ValidationCase, str]] = set()
    for i, row in enumerate(rows):
        key = ValidationCase.from_config(row.config), row.metric
        if key in seen:
            problem = f"repeats {row.metric} of {key[0].label()}"
            raise InputError(problem, file=file, field=f"rows[{i}]", fix="keep one of them")
        seen.add(key)
    for case, metric in seen:
        if (case, STEP_TIME) not in seen:
            raise InputError(
                f"have {metric} of {case.label()}, but no {STEP_TIME}",
                file=file,
                field="rows",
                fix="validate on the card again",
            )


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
    for name, known in (("scheme", (SPARSE, DENSE)), ("transport", TRANSPORTS)):
        if getattr(case, name) not in known:
            raise InputError(f"must be {' or '.join(known)}", file=file, field=f"{field}.{name}")
    if case.scheme != DENSE:
        _check_sparse(case, config, field, file)
    ratio: Any = case.fetch_ratio
    if ratio is not None and (type(ratio) not in {int, float} or not 0 <= ratio <= 1):
        raise InputError("must be 0 to 1 or all", file=file, field=f"{field}.fetch_ratio")


def _check_sparse(case: ValidationCase, config: dict[str, Any], field: str, file: str) -> None:
    """Refuse a sparse configuration without one of its keys, or with a budget that does not fit."""
    for name in ("fetch_ratio", "transport", "budget_tokens"):
        if config.get(name) is None:
            raise InputError("is missing", file=file, field=f"{field}.{name}")
    problem = None
    if case.budget_tokens % case.block_tokens:
        problem = f"must be a multiple of the block ({case.block_tokens})"
    elif case.budget_tokens >= case.context_tokens:
        problem = f"must be less than the context ({case.context_tokens})"
    if problem is not None:
        raise InputError(problem, file=file, field=f"{field}.budget_tokens")
