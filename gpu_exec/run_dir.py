"""Read the schedule of a run directory, and only of one that is as the run wrote it."""

from __future__ import annotations

from pathlib import Path

from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import InputError
from oasis_sim.fileio import check_whole_run, inside

SCHEDULE_NAME = "schedule.npz"


def load_run_schedule(run_dir: str | Path) -> Schedule:
    """Load the schedule of a run directory.

    Raises InputError when there is none, or when any file of the run is missing or changed: what is
    replayed is compared with the simulation that the other files describe.
    """
    directory = Path(run_dir)
    if not directory.is_dir():
        raise InputError("is not a run directory", file=directory, fix="give the --out of a run")
    path = inside(directory, SCHEDULE_NAME)
    if not path.exists():
        check_whole_run(directory)
        raise InputError(
            f"has no {SCHEDULE_NAME}",
            file=directory,
            fix="run again on one node, with a scheme whose moves can be replayed, such as oasis",
        )
    check_whole_run(directory, SCHEDULE_NAME)
    return Schedule.load(path)
