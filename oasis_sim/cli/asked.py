"""The command line that was given, as a command that says the same again."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import click
from click.core import ParameterSource

from oasis_sim.cli.sweep_points import text_of

PROGRAM = "oasis-sim"


def repeated(ctx: click.Context, without: Collection[str]) -> str:
    """Return the command with the options that were given, but those `without`."""
    words = [PROGRAM, str(ctx.info_name)]
    for option, text in _options(ctx, without):
        if ctx.get_parameter_source(str(option.name)) is not ParameterSource.COMMANDLINE:
            continue
        if option.is_flag:
            words.append(option.opts[-1])
        elif option.multiple:
            words += [
                word for each in ctx.params[str(option.name)] for word in (option.opts[-1], each)
            ]
        else:
            words += [option.opts[-1], text]
    return shlex.join(words)


def options_shown(ctx: click.Context, without: Collection[str]) -> dict[str, str]:
    """Return every option that has a value, given or by default, as text."""
    return {option.opts[-1][2:].replace("-", "_"): text for option, text in _options(ctx, without)}


def _options(ctx: click.Context, without: Collection[str]) -> list[tuple[click.Option, str]]:
    found = []
    for each in ctx.command.params:
        unset = each.name in without or ctx.params.get(str(each.name)) is False
        if isinstance(each, click.Option) and not unset:
            text = text_of(each, ctx.params)
            if text is not None:
                found.append((each, text))
    return found
