"""`oasis-sim paper`: published tables and figures beside simulated ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import TOKENS, output_options
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.terminal import note, simulation_bar

if TYPE_CHECKING:
    from oasis_sim.paper.comparison import Comparison
    from oasis_sim.paper.reproduce import Inputs

Command = TypeVar("Command", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
NAMES = (
    "fig1",
    "fig2",
    "fig4",
    "fig6",
    "table2",
    "fig11",
    "fig12",
    "fig13",
    "fig14",
    "fig15",
)
ALL = "all"
WITH_CONTEXT = ("fig1", "fig11", ALL)


def profile_option(command: Command) -> Command:
    """Add `--profile`."""
    return click.option(
        "--profile",
        metavar="NAME|FILE",
        default="h100",
        show_default=True,
        help="Hardware profile.",
    )(command)


def engine_option(command: Command) -> Command:
    """Add `--engine`."""
    return click.option(
        "--engine",
        metavar="NAME",
        default="vllm",
        show_default=True,
        help="Engine cost model, one of the profile's (see 'profiles').",
    )(command)


@click.command(cls=OnceCommand, context_settings=HELP)
@click.argument("name", metavar="NAME", type=click.Choice((*NAMES, ALL)))
@click.option(
    "--context",
    type=TOKENS,
    help="Tokens of context of figures 1 and 11.  [default: 32768 and 16384]",
)
@profile_option
@engine_option
@click.option(
    "--trace",
    metavar="NAME|FILE",
    multiple=True,
    default=("aime.jsonl",),
    show_default=True,
    help="Attention trace; repeat for several.",
)
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="Draw it, too: .svg, .png or .pdf (needs matplotlib).",
)
@click.option("--force", is_flag=True, help="Replace an existing file of --plot.")
@output_options
def paper(name: str, plot: Path | None, output_format: str, quiet: bool, **inputs: Any) -> None:
    """Reproduce a published table or figure: published beside simulated, with errors.

    NAME is fig1 (intensities of models), fig2 (retrieval share), fig4 and fig6 (prediction by
    layer), table2 (fetch ratios), fig11 (concurrency), fig13 (budgets); disaggregated: fig12
    (throughput and host memory), fig14 (KV sent and fetched), fig15 (first token); or all.
    """
    from oasis_sim.paper.present import write_comparisons
    from oasis_sim.paper.reproduce import Inputs
    from oasis_sim.report.directory import json_text

    context = inputs["context"]
    if context is not None and name not in WITH_CONTEXT:
        raise click.UsageError(f"--context applies to fig1 and fig11, not to {name}")
    if plot is not None:
        check_drawing(name, plot, inputs["force"])
    names = NAMES if name == ALL else (name,)
    wanted = Inputs(inputs["profile"], inputs["engine"], inputs["trace"], context)
    found = [reproduced(each, wanted, quiet) for each in names]
    if plot is not None:
        from oasis_sim.paper.plot import draw

        draw(found[0], plot)
        note(f"plot: {plot}", quiet)
    if output_format == "json":
        documents = [comparison.to_json() for comparison in found]
        sys.stdout.write(json_text(documents if name == ALL else documents[0]))
    else:
        write_comparisons(found, output_format, sys.stdout)
    if output_format != "table":
        for comparison in found:
            for text in comparison.notes:
                note(f"{comparison.name}: {text}", quiet)


def check_drawing(name: str, plot: Path, force: bool) -> None:
    """Refuse a picture that could not be drawn or written, before the simulations."""
    from oasis_sim.report.plotfile import check_plot

    if name == ALL:
        raise click.UsageError("--plot draws one table or figure; name it instead of all")
    check_plot(plot, force=force)


def reproduced(name: str, inputs: Inputs, quiet: bool) -> Comparison:
    """Simulate one table or figure beside its published numbers."""
    from oasis_sim.paper.reproduce import reproduce
    from oasis_sim.paper.setup import no_progress

    with simulation_bar(name, quiet) as bar:
        return reproduce(name, inputs, bar or no_progress)
