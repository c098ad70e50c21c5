"""From the texts of a grid to scenarios, through the very options of `oasis-sim run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.compare import for_scheme
from oasis_sim.cli.options import scenario_options, spec_from
from oasis_sim.errors import UsageError

if TYPE_CHECKING:
    from oasis_sim.plan.grid import Grid
    from oasis_sim.plan.sweep import Point

SEVERAL = ","
IN_BYTES = ("host_bytes", "hbm_bytes")


def scenario_parameters() -> dict[str, click.Option]:
    """Return the options of a scenario by the name that grids use (`fetch_ratio`), in order."""

    @click.command("sweep", add_help_option=False)
    @scenario_options
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
    grid = Grid() if file is None else read_grid(file)
    given = {name: text_of(option, values) for name, option in parameters.items()}
    varied = dict(parse_vary(text) for text in vary)
    if len(varied) < len(vary):
        raise UsageError("an option is varied twice; give all its values in one --vary")
    fixed = {name: text for name, text in given.items() if text is not None}
    base = {name: text for name, text in grid.base.items() if name not in varied} | fixed
    axes = {name: found for name, found in grid.vary.items() if name not in fixed} | varied
    if not axes:
        raise UsageError("nothing is varied: give --vary NAME=VALUES or a grid file with 'vary'")
    return Grid(base, axes).in_order(list(parameters))


def text_of(option: click.Option, values: Mapping[str, Any]) -> str | None:
    """Return the value of an option as the text that gives it again."""
    value = values[str(option.name)]
    if value is None or value == ():
        return None
    if isinstance(value, tuple):
        return SEVERAL.join(value)
    return f"{value} B" if option.name in IN_BYTES else str(value)


def points_of(grid: Grid) -> list[Point]:
    """Return the points of a grid in canonical order.

    Options that mean nothing to a scheme (a fetch ratio where all KV stays in HBM) are left out
    of its points. Raise a usage error for a value that its option refuses.
    """
    from oasis_sim.plan.sweep import Point

    parameters = scenario_parameters()
    context = click.Context(click.Command("sweep"))
    known: dict[tuple[str, str], Any] = {}

    def converted(name: str, text: str) -> Any:
        if (name, text) not in known:
            option = parameters[name]
            raw = tuple(text.split(SEVERAL)) if option.multiple else text
            known[name, text] = option.process_value(context, raw)
        return known[name, text]

    empty = {str(option.name): None for option in parameters.values()}
    points = []
    for point in grid.points():
        texts = {**grid.base, **point}
        values = empty | {
            str(parameters[name].name): converted(name, text) for name, text in texts.items()
        }
        used = values if values["scheme"] is None else for_scheme(values, values["scheme"])
        labels = {
            name: text if used[str(parameters[name].name)] is not None else None
            for name, text in point.items()
        }
        points.append(Point(labels, spec_from(used)))
    return points
