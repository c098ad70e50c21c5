"""`--help` of every command: each option says what it does, each command what it is for."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from oasis_sim.cli.main import cli
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.reworded import reworded


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and sub-command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def command_of(words: tuple[str, ...]) -> click.Command:
    """Return the command of some words."""
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_paths_are_judged_where_they_are_used(words: tuple[str, ...]) -> None:
    """Click would call a file that may not be read a usage error, even one to be replaced."""
    found = [each.type for each in command_of(words).params if isinstance(each.type, click.Path)]
    assert [PATH] * len(found) == found


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_every_option_is_told(words: tuple[str, ...]) -> None:
    """No option that is shown is without a sentence, no summary of a sub-command is cut."""
    command = command_of(words)
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [] == [each.name for each in options if not each.hidden and not each.help]
    assert len(words) == 1 or not command.get_short_help_str(limit=60).endswith("...")


def test_options_are_reworded() -> None:
    """Another command's option of the same decorator keeps its words; an empty one is hidden."""
    shared = click.option("--size", help="Of all.")

    def plain() -> None:
        """Do nothing."""

    own = reworded(size="Of this.")(click.command(shared(plain)))
    hidden = reworded(size="")(click.command(shared(lambda: None)))
    kept = click.command(shared(lambda: None))
    assert ["Of this.", "", "Of all."] == [each.params[0].help for each in (own, hidden, kept)]
    assert [False, True, False] == [each.params[0].hidden for each in (own, hidden, kept)]
