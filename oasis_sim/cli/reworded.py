"""Shared options, told in a command's own words."""

from __future__ import annotations

from collections.abc import Callable

import click


def reworded(**texts: str) -> Callable[[click.Command], click.Command]:
    """Replace the help of options by name; an option with an empty text is not shown."""

    def change(command: click.Command) -> click.Command:
        options = {option.name: option for option in command.params}
        for name, text in texts.items():
            option = options[name]
            assert isinstance(option, click.Option)
            option.help, option.hidden = text, not text
        return command

    return change
