"""What the GPU commands share: options, sizes, and one way to print a result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from oasis_sim.errors import InputError, UsageError
from oasis_sim.text import plain

HELP = {"help_option_names": ["-h", "--help"]}
FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="What standard output carries.",
)
QUIET = click.option("--quiet", is_flag=True, help="No progress and notes.")
GPU = click.option("--gpu", is_flag=True, help="Run on the GPU; exit 5 when there is none.")
HOST_MEMORY = click.option(
    "--host-memory",
    default="4 GiB",
    show_default=True,
    metavar="SIZE",
    help="Pinned host pool per device; host units are shared when the run models more.",
)


def size_of(text: str) -> int:
    """Return the bytes of `--host-memory`; raise UsageError for anything else."""
    from oasis_sim.units import parse_bytes

    try:
        size = parse_bytes(text)
    except InputError as error:
        raise UsageError(f"--host-memory: {error}") from None
    if size < 1 << 20:
        raise UsageError("--host-memory must be 1 MiB or more")
    return size


def same_place(first: Path, second: Path) -> bool:
    """Tell whether two paths name one file, which may be there or not."""
    return os.path.realpath(first) == os.path.realpath(second)


def given(*names: str) -> list[str]:
    """Return which of these options of the command that runs were typed, as they are typed."""
    context = click.get_current_context()
    typed = [n for n in names if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    return [f"--{name.replace('_', '-')}" for name in typed]


def command_line() -> str:
    """Return the command as the user typed it."""
    return " ".join(["oasis-sim", *sys.argv[1:]])


def emit(document: Mapping[str, Any], lines: Sequence[str], output_format: str) -> None:
    """Print the result alone on standard output."""
    if output_format == "json":
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        for line in lines:
            click.echo(plain(line))
