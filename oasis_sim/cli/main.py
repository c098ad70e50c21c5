"""The command line: one table of commands, loaded when they are used, and one way to fail."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import click

from oasis_sim.cli.once import OnceGroup
from oasis_sim.errors import EXIT_INTERRUPTED, OasisError
from oasis_sim.text import one_line

PROGRAM = "oasis-sim"
TRACEBACK_VARIABLE = "OASIS_SIM_TRACEBACK"
OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What the operating system says of a stream that cannot take what is written."""
COMPLETION_VARIABLE = "_OASIS_SIM_COMPLETE"

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "run": ("oasis_sim.cli.run:run", "Simulate a scenario and write a run directory."),
        "compare": (
            "oasis_sim.cli.compare:compare",
            "Put runs or schemes side by side: what differs and why.",
        ),
        "sweep": ("oasis_sim.cli.sweep:sweep", "Simulate a grid of scenarios into one table."),
        "plan": ("oasis_sim.cli.plan:plan", "Find the fewest GPUs that meet latency targets."),
        "report": ("oasis_sim.cli.report:report", "Write a run, a sweep or a plan as one page."),
        "paper": ("oasis_sim.cli.paper:paper", "Put published numbers beside simulated ones."),
        "breakdown": (
            "oasis_sim.cli.roofs:breakdown",
            "Split the time per token: published formula, simulated step.",
        ),
        "roofline": ("oasis_sim.cli.roofs:roofline", "Show what each memory tier permits at most."),
        "trace": ("oasis_sim.cli.trace:trace", "Look into, check, convert and make traces."),
        "record": ("oasis_sim.cli.record:record", "Record the attention trace of a real model."),
        "quality": (
            "oasis_sim.cli.quality:quality",
            "Decode a real model sparsely: what a scheme costs.",
        ),
        "replay": ("oasis_sim.cli.gpu:replay", "Execute a run's schedule on a GPU and compare."),
        "calibrate": ("oasis_sim.cli.measure:calibrate", "Measure a GPU and write its profile."),
        "validate": ("oasis_sim.cli.measure:validate", "Compare simulated with measured times."),
        "profiles": ("oasis_sim.cli.catalogue:profiles", "List or show hardware profiles."),
        "networks": ("oasis_sim.cli.catalogue:networks", "List or show network profiles."),
        "models": ("oasis_sim.cli.catalogue:models", "List or show models."),
        "schemes": ("oasis_sim.cli.catalogue:schemes", "List or show KV cache schemes."),
        "doctor": ("oasis_sim.cli.gpu:doctor", "Say what this machine can do."),
    }
)


class LazyGroup(OnceGroup):
    """Import the module of a command when that command is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name every command in the order of the table."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Load one command, None when it is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name, suggesting the nearest name if none fits."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(unknown_command(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the table of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def unknown_command(name: str) -> str:
    """Say that a command is unknown and what was perhaps meant."""
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(COMMANDS)}"
    return f"no such command '{name}'; {hint}"


def print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print the version and end."""
    if value and not ctx.resilient_parsing:
        from oasis_sim import __version__

        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Simulate LLM decoding with the KV cache in host memory and the working set in HBM.

    Start with: oasis-sim run --profile h100 --trace aime.jsonl
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the process."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        # Not click's own main: it ends with code 1 when the reader of a pipe goes away.
        with cli.make_context(PROGRAM, arguments) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
    except BrokenPipeError:
        return drop_output()
    except Exception as error:  # noqa: BLE001 - the one place where errors become exit codes
        return report_failure(error)
    except KeyboardInterrupt:
        return fail("interrupted", EXIT_INTERRUPTED)
    return result if isinstance(result, int) else 0


def open_closed_streams() -> None:
    """Let output go nowhere where the caller closed it (`>&-`): the work is still to be done.

    The descriptors are taken too, so that no file of the run gets the number of a closed one.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def drop_output() -> int:
    """Let what is left go nowhere: the reader (head, less) has seen enough, which is no failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def report_failure(error: Exception) -> int:
    """Print one line about an error on standard error and return the exit code it calls for."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort):
        return fail("interrupted", EXIT_INTERRUPTED)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        return fail(error.format_message(), error.exit_code, command_of(error))
    if isinstance(error, OasisError):
        return fail(str(error), error.exit_code)
    if isinstance(error, OSError) and error.strerror:
        return report_system_error(error)
    if isinstance(error, MemoryError):
        return fail("not enough memory on this machine for this run; make it smaller", 1)
    return internal_error(error)


def report_system_error(error: OSError) -> int:
    """Name the file of an error, or standard output where that took no more.

    Files are written through `oasis_sim.fileio`, whose errors carry their path.
    """
    if error.filename:
        return fail(f"{error.filename}: {error.strerror}", 1)
    if error.errno not in OUTPUT_ERRORS:
        return fail(f"{error.strerror}", 1)
    with contextlib.suppress(OSError):  # a stream without a descriptor has nothing to drop
        drop_output()
    return fail(f"standard output: {error.strerror}", 1)


def command_of(error: click.ClickException) -> str | None:
    """Name the command whose usage was wrong."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else None


def internal_error(error: Exception) -> int:
    """Report a defect of the program itself in one line, with the trace on request."""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return fail(
        f"internal error, please report it: {type(error).__name__}: {error} "
        f"({os.path.basename(frame.filename)}:{frame.lineno}; "
        f"{TRACEBACK_VARIABLE}=1 shows more)",
        1,
    )


def fail(message: str, code: int, command: str | None = None) -> int:
    """Print one line on standard error and pass the exit code on."""
    help_hint = f" (see '{command} --help')" if command else ""
    click.echo(f"{PROGRAM}: error: {one_line(message)}{help_hint}", err=True)
    return code


def entry_point() -> None:
    """Run as the installed script; complete a command line when the shell asks for it."""
    if COMPLETION_VARIABLE in os.environ:
        cli.main(prog_name=PROGRAM)
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
