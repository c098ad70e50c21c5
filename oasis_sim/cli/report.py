"""`oasis-sim report`: a run, a sweep or a plan as a page, as Markdown or as numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.report_files import REPORT_FORMATS, check_place, format_of
from oasis_sim.cli.terminal import note
from oasis_sim.errors import UsageError


@click.command(cls=OnceCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="DIR|PLAN.json")
@click.option(
    "--format",
    "report_format",
    type=click.Choice(REPORT_FORMATS),
    help="What the report is.  [default: that of --out, else html]",
)
@click.option(
    "--out",
    type=PATH,
    help="File to write.  [default: SOURCE-report.html in the current directory; md and csv go to "
    "standard output]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", is_flag=True, help="No notes.")
def report(
    source: str, report_format: str | None, out: Path | None, force: bool, quiet: bool
) -> None:
    """Write what a run, a sweep or a plan says as one page that opens offline.

    DIR is the --out of a run or a sweep; PLAN.json what 'plan --format json' prints (a plan writes
    its report itself with --report). The page holds its figures, every number as CSV, the inputs
    and the command that repeats it. 'md' is for a pull request, 'csv' holds all numbers.
    """
    from oasis_sim.cli.report_source import report_text
    from oasis_sim.fileio import write_atomic

    named = None if out is None else format_of(out)
    if report_format and named and named != report_format:
        raise UsageError(f"--format {report_format} and a name in .{named} contradict each other")
    kind = report_format or named or "html"
    place = page_of(source) if out is None and kind == "html" else out
    if place is not None:
        check_place(place, force=force)
    text = report_text(source, kind)
    if place is None:
        sys.stdout.write(text)
        return
    write_atomic(place, text)
    note(f"report: {place}", quiet)


def page_of(source: str) -> Path:
    """Return the page's name, after its source: `runs/A` gives `A-report.html`.

    It lies beside, not in, a run directory, which holds what its manifest names and nothing else.
    """
    path = Path(source).resolve()
    return Path(f"{path.name if path.is_dir() else path.stem}-report.html")
