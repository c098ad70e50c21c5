"""What a report is made of: the directory of a run or of a sweep, or the JSON of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oasis_sim.errors import InputError
from oasis_sim.units import MIB

if TYPE_CHECKING:
    from oasis_sim.report.page.document import Report

TEXT_CAP_BYTES = 256 * MIB
PLAN_NAME = "plan.json"


def report_text(name: str, report_format: str) -> str:
    """Return the report of a place in one of the formats; InputError for none or a damaged one.

    Whatever the page cannot show is damage: every number is looked at before the first is written.
    """
    from oasis_sim.cli.report_files import as_text
    from oasis_sim.fileio import printable

    path = Path(name)
    try:
        return as_text(_report(path), report_format)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"its results are damaged ({type(error).__name__}: {error})",
            file=printable(path),
            fix="make them again",
        ) from None


def _report(path: Path) -> Report:
    from oasis_sim.fileio import printable
    from oasis_sim.plan.store import GRID_NAME
    from oasis_sim.report.directory import SUMMARY_NAME

    if path.is_file():
        return plan_file(path)
    for name, read in ((SUMMARY_NAME, run_directory), (GRID_NAME, sweep_directory)):
        if (path / name).is_file():
            return read(path)
    if (path / PLAN_NAME).is_file():
        return plan_file(path / PLAN_NAME)
    raise InputError(
        f"holds no {SUMMARY_NAME} (of a run), no {GRID_NAME} (of a sweep) and no {PLAN_NAME}"
        if path.is_dir()
        else "no such file or directory",
        file=printable(path),
        fix="name the --out of a run or sweep, or a file with the JSON of a plan",
    )


def plan_file(path: Path) -> Report:
    """Return the report of `plan --format json`."""
    from oasis_sim.fileio import load_json
    from oasis_sim.plan.plan_json import SCHEMA_VERSION
    from oasis_sim.report.page.of_plan import plan_report

    plan: Any = load_json(path).value
    if not isinstance(plan, dict) or "fleets" not in plan:
        raise InputError("is no plan", file=path, fix="give the output of plan --format json")
    if plan.get("schema_version") != SCHEMA_VERSION or "evidence" not in plan:
        raise InputError(f"is no plan of version {SCHEMA_VERSION}", file=path, fix="plan again")
    return plan_report(plan)


def run_directory(path: Path) -> Report:
    """Return the report of a run."""
    from oasis_sim.fileio import inside, load_json
    from oasis_sim.report.directory import CONFIG_NAME
    from oasis_sim.report.page.of_run import run_report
    from oasis_sim.report.rundir import read_summary
    from oasis_sim.report.timeline import FILE_NAME

    summary = read_summary(path)
    timeline = None
    if (path / FILE_NAME).is_file():
        timeline = load_json(inside(path, FILE_NAME)).value
    return run_report(summary, _text(inside(path, CONFIG_NAME)), timeline)


def sweep_directory(path: Path) -> Report:
    """Return the report of a sweep, also of one that is not finished."""
    from oasis_sim.plan.kept import kept_rows
    from oasis_sim.plan.store import GRID_NAME
    from oasis_sim.report.page.of_sweep import SweepPoint, sweep_report

    points = [
        SweepPoint(row.point, None if row.outcome is None else row.outcome.summary, row.status)
        for row in kept_rows(path)
    ]
    return sweep_report(points, _text(path / GRID_NAME))


def _text(path: Path) -> str:
    from oasis_sim.fileio import read_bytes

    return read_bytes(path, TEXT_CAP_BYTES).decode("utf-8")
