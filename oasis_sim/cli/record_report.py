"""What ``oasis-sim record`` says of its traces: the header's command, and the closing table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.fileio import printable

if TYPE_CHECKING:
    from oasis_sim.trace import AttentionTrace

_NOT_IN_THE_COMMAND = {"out", "force", "checkpoint", "output", "quiet"}
_WITH_FILES = {"model", "eagle3"}


def recorded_command(context: click.Context) -> str:
    """Return the command for the header: what decided the bytes, files by their names alone."""
    words = ["oasis-sim", "record"]
    for option in context.command.params:
        name = str(option.name)
        source = context.get_parameter_source(name)
        if source is not click.core.ParameterSource.COMMANDLINE or name in _NOT_IN_THE_COMMAND:
            continue
        value = context.params[name]
        if isinstance(option, click.Argument):
            words.append(value.name)
        elif value is True or value is False:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        elif name == "block_sizes":
            words += [option.opts[0], ",".join(map(str, value))]
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [word for each in values for word in (option.opts[0], _shown(each))]
    return shlex.join(words)


def _shown(value: object) -> str:
    """Return an option's value; of a file its name."""
    if isinstance(value, Path):
        return printable(value.name)
    kind, colon, place = str(value).partition(":")
    return f"{kind}:{Path(place).name}" if colon and kind in _WITH_FILES else str(value)


def report(places: Sequence[Path], traces: Sequence[AttentionTrace], output: str) -> str:
    """Return what was recorded, as a table or as JSON; several traces stand in a list."""
    found = [_facts(place, trace) for place, trace in zip(places, traces, strict=True)]
    if output == "json":
        return json.dumps(found[0] if len(found) == 1 else {"traces": found}, indent=2)
    return "\n\n".join(map(_table, found))


def _facts(place: Path, trace: AttentionTrace) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "file": printable(place),
        "file_bytes": place.stat().st_size,
        "model": trace.meta["model"]["name"],
        "prompt_tokens": int(trace.meta["prompt_tokens"]),
        "steps": trace.steps,
        "layers": trace.layers,
        "kv_heads": trace.kv_heads,
        "block_tokens": trace.block_tokens,
        "stored_blocks": trace.stored_blocks,
        "perplexity": float(trace.meta["text"]["perplexity"]),
        "accepted": {key: float(flags.mean()) for key, flags in trace.accepted.items()},
    }


def _table(found: dict[str, Any]) -> str:
    facts = dict(found)
    accepted = facts.pop("accepted")
    rows = [(key.replace("_", " "), str(value)) for key, value in facts.items()]
    rows += [(f"{key} accepted", f"{share:.3f}") for key, share in accepted.items()]
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)
