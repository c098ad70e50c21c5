"""Commands that refuse an option given twice where it takes one value.

Click keeps the last value in silence; whoever gives `--profile h100 --profile h200` may want both.
"""

from __future__ import annotations

from collections.abc import Sequence

import click


class _Once(click.Command):
    """Parse arguments as click does, once it is sure that nothing of them is dropped."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse repeated options, then parse; shell completion parses what is half typed."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            refuse_repeated(ctx, given)
        return super().parse_args(ctx, args)


class OnceCommand(_Once):
    """Be a command whose single-valued options are given once."""


class OnceGroup(_Once, click.Group):
    """Be a group of such commands."""

    command_class = OnceCommand


def refuse_repeated(ctx: click.Context, given: Sequence[click.Parameter]) -> None:
    """Raise a usage error for an option that takes one value and stands in `given` twice."""
    for option in given:
        if isinstance(option, click.Option) and takes_one(option) and given.count(option) > 1:
            raise click.UsageError(
                f"{' / '.join((*option.opts, *option.secondary_opts))} is given twice and takes "
                "one value; give it once",
                ctx,
            )


def takes_one(option: click.Option) -> bool:
    """Tell whether a second value would replace the first: not for lists, counts and switches."""
    is_switch = option.is_flag and not option.secondary_opts
    return not (option.multiple or option.count or is_switch)
