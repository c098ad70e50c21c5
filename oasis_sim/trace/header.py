"""The header (``meta``) of a trace file: what it must say, and what may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from oasis_sim.errors import InputError
from oasis_sim.fileio import Document, Fields, printable
from oasis_sim.trace.mass import MASS_CODE

FORMAT = "oasis-trace"
VERSION = 1
ORIGINS = ("recorded", "synthetic")
MOST_BLOCKS = 65535
_COUNT_CAP = 1 << 24
_COUNTS = ("version", "block_tokens", "prompt_tokens", "steps", "stored_blocks")
_MODEL_COUNTS = ("layers", "kv_heads", "query_heads", "head_dim")
_OPTIONAL = ("layer_span", "aggregation", "drafters", "text", "recorder")
_KNOWN = {
    *("format", "version", "origin", "name", "model", "layer_ids", "block_tokens"),
    *("prompt_tokens", "steps", "stored_blocks", "mass_code", "synthetic", "recording"),
    *_OPTIONAL,
}


def check_header(meta: object, file: str, line: int | None = None) -> tuple[str, ...]:
    """Check a header; return warnings about keys that are missing or unknown.

    Raises InputError that lists every mistake with its field.
    """
    document = Document(meta, file, {} if line is None else {(): line})
    fields = Fields.of(document)
    _check_format(fields, file, line)
    fields.keys()
    fields.text("origin", choices=ORIGINS)
    fields.text("name")
    for key in ("block_tokens", "steps"):
        fields.integer(key, low=1, high=_COUNT_CAP)
    fields.integer("stored_blocks", low=1, high=MOST_BLOCKS)
    fields.integer("prompt_tokens", 0, high=2**31 - 1)
    layers = _check_model(fields.child("model"))
    _check_layers(fields, dict(document.value), layers)
    if fields.has("mass_code"):
        fields.text("mass_code", choices=(MASS_CODE,))
    if fields.has("drafters"):
        _check_drafters(fields.child("drafters"))
    for key in ("aggregation", "text", "synthetic"):
        if fields.has(key):
            fields.child(key).keys()
    fields.finish()
    _check_finite(document.value, file, line)
    return _warnings(dict(document.value))


def with_integers(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header that passed its check with the counts as integers (16.0 is 16)."""
    model = {
        key: int(value) if key in _MODEL_COUNTS else value for key, value in meta["model"].items()
    }
    counts = {key: int(meta[key]) for key in _COUNTS if key in meta}
    return {**meta, **counts, "model": model}


def _check_finite(meta: object, file: str, line: int | None) -> None:
    """Refuse numbers that JSON cannot write again, such as 1e999."""
    stack = [("", meta)]
    while stack:
        field, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            fix = "write a finite number"
            raise InputError("is not finite", file=file, line=line, field=field[1:], fix=fix)
        if isinstance(value, Mapping):
            stack.extend((f"{field}.{printable(key, 60)}", item) for key, item in value.items())
        elif isinstance(value, list):
            stack.extend((field, item) for item in value)


def _check_format(fields: Fields, file: str, line: int | None) -> None:
    """Refuse other formats at once: nothing else in them would make sense."""
    if fields.text("format", "") != FORMAT or not fields.clean:
        raise InputError(
            f"the header does not say that this is a trace ('format': '{FORMAT}')",
            file=file,
            line=line,
            field="format",
            fix="is this the right file?",
        )
    version = fields.integer("version", low=1)
    if version != VERSION:
        raise InputError(
            f"version {version} is not known",
            file=file,
            line=line,
            field="version",
            fix=f"this program reads version {VERSION}",
        )


def _check_model(model: Fields) -> int:
    """Check the model's shape; return its layers."""
    model.keys()
    model.text("name")
    counts = [model.integer(key, low=1, high=_COUNT_CAP) for key in _MODEL_COUNTS]
    return counts[0]


def _check_layers(fields: Fields, meta: Mapping[str, Any], layers: int) -> None:
    """Check the recorded layers' numbers and spans."""
    ids = meta.get("layer_ids")
    if not isinstance(ids, list) or not ids or not all(map(_is_whole, ids)):
        fields.mistake("layer_ids", "is no list of layer numbers", "list the recorded layers", None)
        return
    if len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < layers:
        fix = f"name each recorded layer once, from 0 to {layers - 1}"
        fields.mistake("layer_ids", "names a layer twice or one that does not exist", fix, None)
    spans = meta.get("layer_span")
    if spans is None:
        return
    if not isinstance(spans, list) or len(spans) != len(ids):
        fix = f"give {len(ids)} entries, null for full attention"
        fields.mistake("layer_span", "does not have one entry per recorded layer", fix, None)
    elif not all(span is None or (_is_whole(span) and span > 0) for span in spans):
        fix = "write tokens, or null for full attention"
        fields.mistake("layer_span", "holds something else than positive tokens", fix, None)


def _check_drafters(drafters: Fields) -> None:
    """Check names and acceptance of the drafters."""
    names = drafters.keys()
    for name in names:
        if not is_drafter_name(name):
            fix = "use printable characters without / and \\"
            drafters.mistake(name, "is not a usable drafter name", fix, None)
            continue
        drafter = drafters.child(name)
        drafter.keys()
        if drafter.has("accepted"):
            drafter.number("accepted", high=1.0)


def is_drafter_name(name: str) -> bool:
    """Tell whether a drafter's name can be part of an array's name in a file."""
    return 0 < len(name) <= 100 and name.isprintable() and not set(name) & set("/\\")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _warnings(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which descriptions are missing and which keys nobody knows."""
    found = [f"header: {key} is missing" for key in _OPTIONAL if meta.get(key) is None]
    if meta["origin"] == "synthetic" and not meta.get("synthetic"):
        found.append("header: a synthetic trace does not say how it was made (synthetic)")
    unknown = sorted(printable(key, 60) for key in meta if key not in _KNOWN)
    if unknown:
        found.append(f"header: unknown keys kept as they are: {', '.join(unknown[:10])}")
    return tuple(found)
