"""`oasis-sim compare`: runs or schemes side by side, with what differs and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import (
    output_options,
    scenario_options_but_scheme,
    spec_from,
)
from oasis_sim.cli.terminal import Warnings, note, simulation_bar
from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.report.side_by_side import Case

SELECTING = ("budget", "evict")
FETCHING = ("fetch_ratio", "cap_blocks", "cap_over", "pool", "predictor", "admit")


@click.command(cls=OnceCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="A B [C ...]", nargs=-1, required=True)
@scenario_options_but_scheme
@click.option("--all", "everything", is_flag=True, help="Show results that do not differ, too.")
@output_options
def compare(names: Sequence[str], everything: bool, **values: Any) -> None:
    """Put runs side by side: what differs, and why.

    A, B and so on are run directories, or schemes, which are simulated with the options (nothing
    is written). Ratios and reasons are against A.
    """
    if len(names) < 2:
        raise UsageError("compare needs two or more run directories or schemes")
    shown = short_names(names)
    warnings = Warnings(values["quiet"])
    cases = [
        case_of(name, short, values, warnings) for name, short in zip(names, shown, strict=True)
    ]
    show_comparison(cases, values["output_format"], values["quiet"], everything)


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of each path, or all of it where two would be called the same."""
    short = [Path(name).name or name for name in names]
    return [
        name if short.count(last) > 1 else last for name, last in zip(names, short, strict=True)
    ]


def case_of(name: str, short: str, values: Mapping[str, Any], warnings: Warnings) -> Case:
    """Read a run directory, or simulate a scheme."""
    from oasis_sim.report.compare import check_case
    from oasis_sim.report.config import read_config
    from oasis_sim.report.directory import CONFIG_NAME
    from oasis_sim.report.rundir import read_summary
    from oasis_sim.report.side_by_side import Case

    if Path(name).is_dir():
        summary = read_summary(name)
        return check_case(Case(short, summary, read_config(Path(name) / CONFIG_NAME).spec.scheme))
    return simulated(for_scheme(values, name), short, warnings)


def simulated(values: Mapping[str, Any], name: str, warnings: Warnings) -> Case:
    """Simulate one scheme."""
    from oasis_sim.engine import simulate
    from oasis_sim.metrics import check_conservation, summarise
    from oasis_sim.report.side_by_side import Case

    scenario = spec_from(values).scenario()
    warnings.show(scenario)
    with simulation_bar(f"simulating {name}", values["quiet"]) as progress:
        result = simulate(scenario, progress)
    check_conservation(result)
    return Case(name, summarise(result), scenario.scheme)


def for_scheme(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return options for one of several schemes.

    Where all KV stays in HBM nothing is fetched, and where all of it is attended nothing is
    selected: such options are for the others.
    """
    from oasis_sim.scheme import load_scheme

    found, scheme = {**values, "scheme": name}, load_scheme(name)
    if not scheme.offload:
        found |= dict.fromkeys(FETCHING)
    if not scheme.selects:
        found |= dict.fromkeys(SELECTING)
    return found


def show_comparison(
    cases: Sequence[Case], output_format: str, quiet: bool, everything: bool = False
) -> None:
    """Print a comparison; what the table says in sentences goes to standard error otherwise."""
    from oasis_sim.report.compare import notes_of, write_comparison

    write_comparison(tuple(cases), output_format, sys.stdout, everything)
    if output_format != "table":
        for text in notes_of(tuple(cases)):
            note(text, quiet)
