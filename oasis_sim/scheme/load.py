"""Read schemes from YAML, built in or the user's, and vary them by option."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import Document, Fields, find_input, load_yaml, shipped_inputs
from oasis_sim.scheme.check import WORDS
from oasis_sim.scheme.scheme import Scheme

_DEFAULTS = Scheme("default")


def scheme_names() -> tuple[str, ...]:
    """List the built-in schemes."""
    return tuple(shipped_inputs("scheme"))


def load_scheme(name: str | Path) -> Scheme:
    """Read a built-in scheme by name or a scheme file; raise InputError with every mistake."""
    return read_scheme(load_yaml(find_input(str(name), "scheme")))


def read_scheme(document: Document) -> Scheme:
    """Check a parsed scheme: every key is a field of Scheme, all but `name` may be left out."""
    fields = Fields.of(document)
    parts: dict[str, Any] = {}
    for part in dataclasses.fields(Scheme):
        parts[part.name] = _read_part(fields, part.name, getattr(_DEFAULTS, part.name))
    scheme = _DEFAULTS
    if fields.clean:
        try:
            scheme = Scheme(**parts)
        except InputError as error:
            fields.adopt(error)
    fields.finish()
    return scheme


def _read_part(fields: Fields, key: str, default: Any) -> Any:
    """Read one part as the type of its default; the ranges are the scheme's own business."""
    if key == "name":
        return fields.text(key)
    if key in WORDS:
        return fields.text(key, default, choices=WORDS[key])
    if key in {"fetch_ratio", "cap_blocks", "draft_kv_bytes_per_token"}:
        if not fields.has(key):
            return None
        return fields.number(key) if key == "fetch_ratio" else fields.integer(key)
    if isinstance(default, bool):
        return fields.flag(key, default)
    if isinstance(default, int):
        return fields.integer(key, default)
    if isinstance(default, float):
        return fields.number(key, default)
    return fields.text(key) if fields.has(key) else ""


def with_options(scheme: Scheme, **options: Any) -> Scheme:
    """Return a checked copy with the options that are not None in place of its parts.

    `fetch_ratio` and `cap_blocks` replace each other; `block_tokens` says the unit. Raise
    UsageError when both of the former are given, for unknown parts, for parts that the scheme does
    not use, and when the result contradicts itself.
    """
    given = {key: value for key, value in options.items() if value is not None}
    unknown = given.keys() - {part.name for part in dataclasses.fields(Scheme)}
    if unknown:
        raise UsageError(f"a scheme has no part {', '.join(sorted(unknown))}")
    if "fetch_ratio" in given and "cap_blocks" in given:
        raise UsageError("give a fetch ratio or a cap in blocks, not both")
    if "fetch_ratio" in given:
        given["cap_blocks"] = None
    elif "cap_blocks" in given:
        given["fetch_ratio"] = None
    if "block_tokens" in given:
        given = {"unit": "token" if given["block_tokens"] == 1 else "block", **given}
    if given.get("predictor") not in {None, scheme.predictor}:
        given = {**_parts_of_predictor(scheme, given["predictor"]), **given}
    if given.get("evict") not in {None, "least_attended"}:
        given = {"admit": "all", **given}
    try:
        varied = dataclasses.replace(scheme, **given)
    except InputError as error:
        raise UsageError(f"scheme {scheme.name} with these options: {error}") from None
    if idle := [part for part, why in _unused(varied).items() if part in given]:
        why = _unused(varied)[idle[0]]
        raise UsageError(
            f"scheme {scheme.name} with these options: {idle[0]}: has no effect: {why}"
        )
    return varied


def _unused(scheme: Scheme) -> dict[str, str]:
    """Return the parts that change nothing about a scheme, and why."""
    all_in_hbm = {"evict": "all KV is in HBM, nothing is evicted"}
    if scheme.offload:
        return {}
    if scheme.selects:
        return all_in_hbm
    return {
        **all_in_hbm,
        "budget_tokens": "all KV is attended",
        "predictor": "all KV is attended, nothing is selected",
    }


def _parts_of_predictor(scheme: Scheme, predictor: str) -> dict[str, Any]:
    """Return the parts that follow from a predictor: the draft row and when blocks are fetched."""
    if not scheme.offload:
        return {}
    is_draft = predictor == "draft"
    return {
        "draft_row": is_draft,
        "speculative": scheme.speculative and is_draft,
        "draft_kv_bytes_per_token": scheme.draft_kv_bytes_per_token if is_draft else None,
        "lookahead": "none" if predictor == "current" else "one_step",
        "compressed_keys": scheme.compressed_keys or predictor != "oracle",
    }
