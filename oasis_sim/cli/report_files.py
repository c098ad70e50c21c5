"""Write reports: the format by the suffix of the file, its place checked before the long work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.report.page.document import Report

REPORT_FORMATS = ("html", "md", "csv")


def as_text(report: Report, report_format: str) -> str:
    """Return a report in one of the formats."""
    from oasis_sim.report.page.html import page
    from oasis_sim.report.page.markdown import markdown
    from oasis_sim.report.page.numbers import report_csv

    writers: Mapping[str, Callable[[Report], str]] = MappingProxyType(
        {"html": page, "md": markdown, "csv": report_csv}
    )
    return writers[report_format](report)


def format_of(path: Path) -> str:
    """Return the format that a file's suffix names; raise UsageError for another."""
    from oasis_sim.fileio import printable

    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in REPORT_FORMATS:
        raise UsageError(f"{printable(path, 60)}: end the name of a report in .html, .md or .csv")
    return suffix


def check_place(path: Path, *, force: bool) -> None:
    """Raise UsageError or InputError when a report cannot be written where it should."""
    from oasis_sim.fileio import check_writable, printable

    shown = printable(path)
    check_writable(path)
    if path.exists() and not force:
        raise UsageError(f"{shown}: exists; choose another name or add --force")


def write_report(report: Report, path: Path, report_format: str) -> None:
    """Write a report, whole or not at all."""
    from oasis_sim.fileio import write_atomic

    write_atomic(path, as_text(report, report_format))
