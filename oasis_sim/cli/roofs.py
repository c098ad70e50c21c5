"""`oasis-sim roofline` and `breakdown`: Figures 1 and 2 for any model and card."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import TOKENS, network_option, output_options
from oasis_sim.cli.paper import HELP, Command, engine_option, profile_option
from oasis_sim.cli.terminal import note, simulation_bar

if TYPE_CHECKING:
    from oasis_sim.engine.scenario import Scenario
    from oasis_sim.trace import AttentionTrace

DEFAULT_SCHEMES = ("dense", "oasis")
ROOFS_LEGEND = """\
KV/token: KV and keys that cross the tier per generated token. batch: what fits / least TPOT.
least TPOT: the weights read once, or the batch's operations where longer; no attention."""
BREAKDOWN_LEGEND = """\
serial: on-demand retrieval, part after part, at nominal bandwidths: the formula of Figure 2.
simulated: a decode step of scheme {scheme}. Critical parts add up to it; the others run beside it,
or inside 'retrieval' where the scheme fetches on demand (prediction: where the engine runs it
inline, too)."""


def model_options(command: Command) -> Command:
    """Add `--model`, `--context` and `--tp`."""
    for option in (
        click.option(
            "--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="GPUs."
        ),
        click.option(
            "--context", type=TOKENS, default=16_384, show_default=True, help="Tokens of context."
        ),
        click.option(
            "--model",
            metavar="NAME|FILE",
            default="qwen3-8b",
            show_default=True,
            help="Model or its config.json.",
        ),
    ):
        command = option(command)
    return command


@click.command(cls=OnceCommand, context_settings=HELP)
@profile_option
@model_options
@click.option(
    "--scheme",
    "schemes",
    metavar="NAME|FILE",
    multiple=True,
    default=DEFAULT_SCHEMES,
    show_default=True,
    help="KV cache scheme; repeat for several.",
)
@click.option(
    "--trace",
    metavar="NAME|FILE",
    multiple=True,
    help="Count the blocks that this trace moves.  [default: the scheme's cap]",
)
@network_option("roce-400")
@engine_option
@output_options
def roofline(
    profile: str,
    model: str,
    context: int,
    tp: int,
    schemes: Sequence[str],
    trace: Sequence[str],
    network: str,
    engine: str,
    output_format: str,
    quiet: bool,
) -> None:
    """Show what each memory tier permits at most: Figure 1 for any model and card.

    A tier permits intensity (tokens per GB of KV moved over it) x bandwidth; the batch permits
    B_max / TPOT_min, the time to read the weights or to compute, without attention. Bandwidths are
    nominal, the batch is what fits beside the engine in a run (all of HBM with --engine roofline).
    The network counts when blocks are on another node.
    """
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model
    from oasis_sim.network import load_network
    from oasis_sim.paper.present import write_rows_under
    from oasis_sim.paper.roofline import RooflineCase
    from oasis_sim.paper.roofline import roofline as roofs
    from oasis_sim.scheme import load_scheme

    case = RooflineCase(
        load_profile(profile),
        load_model(model),
        context,
        load_network(network),
        tp,
        engine,
        load_traces(trace),
    )
    found = [roofs(case, load_scheme(name)) for name in schemes]
    rows = [row for each in found for row in each.rows()]
    heading = {
        "name": "roofline",
        "profile": case.profile.name,
        "model": case.model.name,
        "context_tokens": context,
        "tp": tp,
        "network": case.network.name,
        "engine": engine,
    }
    write_rows_under(heading, rows, output_format, sys.stdout, ROOFS_LEGEND)
    moved = "moved by the trace" if trace else "at the scheme's cap, the most that it moves"
    note(f"blocks over PCIe: {moved}; 'network' is the roof if they come from another node", quiet)
    note_origin(case.traces, quiet)


@click.command(cls=OnceCommand, context_settings=HELP)
@profile_option
@model_options
@click.option(
    "--batch", type=click.IntRange(1, 4096), default=32, show_default=True, help="Requests."
)
@click.option("--attended", type=TOKENS, default=2048, show_default=True, help="Tokens attended.")
@click.option(
    "--scheme", metavar="NAME|FILE", default="oasis", show_default=True, help="KV cache scheme."
)
@engine_option
@click.option(
    "--trace",
    metavar="NAME|FILE",
    multiple=True,
    default=("aime.jsonl",),
    show_default=True,
    help="Attention trace; repeat for several.",
)
@output_options
def breakdown(output_format: str, quiet: bool, **values: Any) -> None:
    """Split the time per token: Figure 2's formula, and a simulated step of a scheme.

    `serial` is the figure's formula of on-demand retrieval, for any model and card: weights,
    attention, and 10 % of the attended KV over PCIe, one after the other, at nominal bandwidths.
    `simulated` are the same parts of a decode step of --scheme; stages that run in the background
    do not add to the step.
    """
    from oasis_sim.engine import simulate
    from oasis_sim.paper.breakdown import OUTPUT_TOKENS, breakdown_of
    from oasis_sim.paper.present import write_rows_under
    from oasis_sim.paper.retrieval import serial_retrieval

    scenario = breakdown_inputs(values)
    serial = serial_retrieval(
        scenario.profile, scenario.model, values["batch"], values["attended"], tp=values["tp"]
    )
    heading = {
        "name": "breakdown",
        "profile": scenario.profile.name,
        "model": scenario.model.name,
        "batch": values["batch"],
        "attended_tokens": values["attended"],
        "scheme": scenario.scheme.name,
        "engine": scenario.engine_name,
        "context_tokens": values["context"],
        "tp": scenario.tp,
    }
    with simulation_bar("simulating", quiet) as progress:
        result = simulate(scenario, progress)
    rows = breakdown_of(serial, result).rows()
    legend = BREAKDOWN_LEGEND.format(scheme=scenario.scheme.name)
    write_rows_under(heading, rows, output_format, sys.stdout, legend)
    last = values["context"] + OUTPUT_TOKENS
    note(f"simulated: mean while contexts grow from {values['context']:,} to {last:,}", quiet)
    note_origin(scenario.traces, quiet)


def note_origin(traces: Sequence[AttentionTrace], quiet: bool) -> None:
    """Say which traces no model produced."""
    for trace in traces:
        if trace.is_synthetic:
            note(f"trace {trace.name} is synthetic: block moves are modelled", quiet)


def breakdown_inputs(values: Mapping[str, Any]) -> Scenario:
    """Load what `breakdown` simulates; the budget of a sparse scheme is what is attended."""
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model
    from oasis_sim.paper.breakdown import breakdown_scenario
    from oasis_sim.paper.setup import Setup
    from oasis_sim.scheme import load_scheme, with_options

    scheme = load_scheme(values["scheme"])
    if scheme.selects:
        scheme = with_options(scheme, budget_tokens=values["attended"])
    traces = load_traces(values["trace"]) if scheme.selects else ()
    setup = Setup(load_profile(values["profile"]), values["engine"], traces)
    setup.profile.engine(setup.engine)
    scenario = breakdown_scenario(
        setup, load_model(values["model"]), scheme, values["batch"], values["context"]
    )
    return replace(scenario, tp=values["tp"])


def load_traces(names: Sequence[str]) -> tuple[AttentionTrace, ...]:
    """Read traces by name."""
    from oasis_sim.trace import load_trace

    return tuple(load_trace(name) for name in names)
