"""From the texts of a grid to scenarios, through the very options of `oasis-sim run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.compare import for_scheme
from oasis_sim.cli.disaggregation import (
    MOST_NODES,
    disaggregation_from,
    disaggregation_options_but_workers,
)
from oasis_sim.cli.options import scenario_options, spec_from
from oasis_sim.errors import UsageError
from oasis_sim.fileio import did_you_mean

if TYPE_CHECKING:
    from oasis_sim.engine.spec import ScenarioSpec
    from oasis_sim.plan.grid import Grid
    from oasis_sim.plan.sweep import Point

SEVERAL = ","
FAULTS_SPLIT = ";"
"""Faults hold commas, so several of them are told apart by another sign, and none is varied."""
FIXED = ("fault",)
IN_BYTES = ("host_bytes", "hbm_bytes", "remote_bytes")


@cache
def scenario_parameters() -> dict[str, click.Option]:
    """Return the options of a scenario by the name that grids use (`fetch_ratio`), in order."""

    @click.command("sweep", add_help_option=False)
    @scenario_options
    @disaggregation_options_but_workers
    def command() -> None:
        """Carry the options of a scenario."""

    options = [each for each in command.params if isinstance(each, click.Option)]
    return {option.opts[-1][2:].replace("-", "_"): option for option in options}


def canonical_grid(file: str | None, vary: Sequence[str], values: Mapping[str, Any]) -> Grid:
    """Return the grid of a file and of options, which come before it, in canonical order.

    Raise UsageError for names that are no options and when nothing is varied.
    """
    from oasis_sim.plan.grid import Grid, parse_vary, read_grid

    parameters = scenario_parameters()
    grid = Grid() if file is None else read_grid(file, problem_with)
    given = {name: text_of(option, values) for name, option in parameters.items()}
    varied = dict(parse_vary(text) for text in vary)
    if len(varied) < len(vary):
        raise UsageError("an option is varied twice; give all its values in one --vary")
    fixed = {name: text for name, text in given.items() if text is not None}
    base = {name: text for name, text in grid.base.items() if name not in varied} | fixed
    axes = {name: found for name, found in grid.vary.items() if name not in fixed} | varied
    if not axes:
        raise UsageError("nothing is varied: give --vary NAME=VALUES or a grid file with 'vary'")
    for name in FIXED:
        if name in axes:
            raise UsageError(f"{name} cannot be varied; set it for all points (--{name})")
    return Grid(base, axes).in_order(list(parameters))


def problem_with(name: str, text: str) -> str | None:
    """Return what is wrong with the value of an option in a grid file, None when nothing is."""
    parameters = scenario_parameters()
    if name not in parameters:
        return f"is no option that can be set or varied{did_you_mean(name, [*parameters])}"
    try:
        converted(parameters[name], text)
    except click.BadParameter as error:
        return error.message
    return None


def converted(option: click.Option, text: str) -> Any:
    """Return the value of an option from its text; raise a usage error when it is refused."""
    parts = tuple(part.strip() for part in text.split(_sign(option)))
    raw = parts if option.multiple else text
    return option.process_value(click.Context(click.Command("sweep")), raw)


def _sign(option: click.Option) -> str:
    return FAULTS_SPLIT if option.name == "faults" else SEVERAL


def text_of(option: click.Option, values: Mapping[str, Any]) -> str | None:
    """Return the value of an option as the text that gives it again."""
    value = values[str(option.name)]
    if value is None or value == ():
        return None
    if isinstance(value, tuple):
        return _sign(option).join(value)
    return f"{value} B" if option.name in IN_BYTES else str(value)


def points_of(grid: Grid) -> list[Point]:
    """Return the points of a grid in canonical order.

    Options that mean nothing to a scheme (a fetch ratio where all KV stays in HBM) are left out
    of its points. Raise a usage error for a value that its option refuses.
    """
    from oasis_sim.plan.sweep import Point

    parameters = scenario_parameters()
    known: dict[tuple[str, str], Any] = {}

    def value_of(name: str, text: str) -> Any:
        if (name, text) not in known:
            known[name, text] = converted(parameters[name], text)
        return known[name, text]

    empty = {str(option.name): None for option in parameters.values()}
    points = []
    for point in grid.points():
        texts = {**grid.base, **point}
        values = empty | {
            str(parameters[name].name): value_of(name, text) for name, text in texts.items()
        }
        used = values if values["scheme"] is None else for_scheme(values, values["scheme"])
        labels = {
            name: text if used[str(parameters[name].name)] is not None else None
            for name, text in point.items()
        }
        points.append(Point(labels, _spec_of(used)))
    return points


def _spec_of(values: Mapping[str, Any]) -> ScenarioSpec:
    """Return the scenario of one point; raise UsageError for faults that no cluster could have."""
    from oasis_sim.cluster.faults import read_faults

    spec = spec_from(values)
    nodes = disaggregation_from(values, None, spec.scheme)
    if nodes is not None:
        read_faults(nodes.faults, MOST_NODES, MOST_NODES)
    return replace(spec, disaggregation=nodes)
