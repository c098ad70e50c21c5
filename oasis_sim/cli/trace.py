"""``oasis-sim trace``: look into, check, convert, measure and make attention traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.lists import listed, read_budget, read_ratio
from oasis_sim.cli.once import OnceGroup
from oasis_sim.cli.options import format_option
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.terminal import note
from oasis_sim.cli.trace_output import emit, short_sample
from oasis_sim.errors import InputError, UsageError
from oasis_sim.fileio import check_writable, printable

if TYPE_CHECKING:
    from oasis_sim.trace import AttentionTrace

DEFAULT_BUDGETS = (256, 512, 1024)
DEFAULT_RATIOS = (0.05, 0.1, 1.0)
STATS_FIRST = ("budget_tokens", "predictor", "fetch_ratio")


@click.group(cls=OnceGroup)
def trace() -> None:
    """Look into, check, convert, measure and make attention traces.

    FILE is a path, or a name that is looked up beside you and then among the shipped traces.
    """


@trace.command(short_help="Show a trace, or list the shipped ones.")
@click.argument("file", required=False)
@format_option
def info(file: str | None, output_format: str) -> None:
    """Show what a trace holds and where it comes from; without FILE, list the shipped traces."""
    from oasis_sim.trace.describe import describe, summarise

    if file is not None:
        facts = describe(_load(file))
        emit(output_format, facts, [("part", "value"), *facts.items()], None)
        return
    from oasis_sim.fileio import shipped_inputs
    from oasis_sim.trace import read_trace

    lines = [summarise(read_trace(path)) for path in shipped_inputs("trace").values()]
    header = list(lines[0]) if lines else ["name"]
    emit(output_format, lines, [header, *(list(line.values()) for line in lines)], None)


@trace.command(short_help="Check a trace against the schema.")
@click.argument("file")
@format_option
def check(file: str, output_format: str) -> None:
    """Check a trace against the schema (exit code 3 when it breaks it) and for plausibility."""
    from oasis_sim.trace.plausible import doubts, fewest_ranked

    found = _load(file, quiet=True)
    warnings = list(doubts(found))
    result = {
        "trace": found.name,
        "origin": found.origin,
        "valid": True,
        "blocks_ranked_everywhere": fewest_ranked(found),
        "warnings": warnings,
    }
    rows = [
        ("finding", "text"),
        ("valid", f"follows oasis-trace version {found.meta['version']}"),
        *(("warning", text) for text in warnings),
    ]
    emit(output_format, result, rows, found)


@trace.command(short_help="Write a trace in another format.")
@click.argument("file")
@click.argument("out", type=PATH)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def convert(file: str, out: Path, force: bool) -> None:
    """Write a trace in the format of OUT's suffix: .npz, .jsonl, .jsonl.gz or .jsonl.zst."""
    _save(_load(file), out, force)


@trace.command(short_help="Measure misses, overlap and captured mass.")
@click.argument("file")
@click.option(
    "--budget",
    "budgets",
    callback=listed(read_budget),
    multiple=True,
    metavar="K,K,...",
    help="Tokens attended per KV head; repeatable.  [default: 256, 512, 1024]",
)
@click.option(
    "--fetch-ratio",
    "ratios",
    callback=listed(read_ratio),
    multiple=True,
    metavar="R,R,...",
    help="Blocks fetched per step, as shares of the budget, or all; repeatable.  "
    "[default: 0.05, 0.1, 1]",
)
@click.option(
    "--predictor",
    "predictors",
    multiple=True,
    help="oracle_mass, current, previous, draft, or a drafter's name.  [default: all]",
)
@click.option(
    "--sample", is_flag=True, help="Show how results move as steps, layers and heads get fewer."
)
@format_option
def stats(
    file: str,
    budgets: Sequence[int],
    ratios: Sequence[float],
    predictors: Sequence[str],
    sample: bool,
    output_format: str,
) -> None:
    """Measure misses, overlap and captured mass that a trace implies by itself.

    Block 0 and the two newest blocks are always resident and count in the budget. Numbers are
    means over steps and heads, as fractions of the chosen blocks.
    """
    from oasis_sim.residency.stats import trace_stats
    from oasis_sim.scheme.scheme import rounded_away

    found = _load(file)
    wanted = list(budgets) or _answerable(found, predictors)
    ratio_list = list(ratios) or list(DEFAULT_RATIOS)
    names = list(predictors) or None
    for budget, ratio in product(wanted, ratio_list):
        for text in rounded_away(ratio, budget // found.block_tokens):
            note(text)
    if sample:
        rows = _sample_rows(found, wanted, ratio_list, names)
    else:
        rows = [row.to_json() for row in trace_stats(found, wanted, ratio_list, names)]
    result = {"trace": found.name, "origin": found.origin, "rows": rows}
    if sample and output_format == "table":
        rows = [short_sample(row) for row in rows]
    known = dict.fromkeys(key for row in rows for key in row)
    # Sorting keeps the order of equals: what names a row comes first, what it measures then.
    header = sorted(known, key=lambda key: key not in STATS_FIRST)
    emit(
        output_format, result, [header, *([row.get(key) for key in header] for row in rows)], found
    )


@trace.command()
@click.argument("out", type=PATH)
@click.option("--preset", metavar="NAME", help="Start from aime, steady, restless or poor-draft.")
@click.option("--parameters", metavar="FILE", help="YAML file of parameters (name: value).")
@click.option(
    "--set",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    help="Change one parameter; repeat for several.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of its random numbers.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def synth(
    out: Path,
    preset: str | None,
    parameters: str | None,
    changes: Sequence[str],
    seed: int,
    force: bool,
) -> None:
    """Make a synthetic trace. Its header, and every result made from it, say that it is one."""
    from oasis_sim.fileio import load_yaml, loads_yaml
    from oasis_sim.trace import synth_presets
    from oasis_sim.trace.synth import synthesize
    from oasis_sim.trace.synth_parameters import SynthParameters

    values: dict[str, Any] = {}
    if preset is not None:
        values |= synth_presets.preset(preset).to_dict()
    if parameters is not None:
        values |= _mapping(load_yaml(parameters).value, parameters)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise UsageError(f"--set {printable(change, 60)}: write NAME=VALUE")
        values[name] = loads_yaml(text, f"--set {printable(name, 60)}").value
    _refuse_existing(out, force)
    _save(synthesize(SynthParameters.from_dict(values), seed), out, force)


def _load(file: str, *, quiet: bool = False) -> AttentionTrace:
    """Read a trace; its warnings go to standard error."""
    from oasis_sim.trace import load_trace

    found = load_trace(file)
    for warning in () if quiet else found.warnings:
        note(f"{printable(file)}: warning: {warning}")
    return found


def _save(found: AttentionTrace, out: Path, force: bool) -> None:
    """Write a trace and say so on standard error."""
    from oasis_sim.trace import save_trace
    from oasis_sim.units import format_bytes

    _refuse_existing(out, force)
    save_trace(found, out)
    size = format_bytes(out.stat().st_size)
    note(f"{printable(out)}: {size}, {found.origin} trace of {found.steps} steps")


def _refuse_existing(out: Path, force: bool) -> None:
    """Replace nothing unasked."""
    if out.exists() and not force:
        raise UsageError(f"{printable(out)} exists; choose another name or add --force")
    check_writable(out)


def _mapping(value: object, file: str) -> Mapping[str, Any]:
    """Return a document that must hold names and values."""
    if not isinstance(value, dict):
        raise InputError("holds no 'name: value' lines", file=printable(file))
    return value


def _answerable(found: AttentionTrace, predictors: Sequence[str]) -> list[int]:
    """Return the default budgets that a trace ranks enough blocks for."""
    from oasis_sim.residency.stats import check_budget, default_predictors

    budgets: list[int] = []
    problem: InputError | None = None
    for budget in DEFAULT_BUDGETS:
        try:
            check_budget(found, budget, predictors or default_predictors(found))
        except InputError as error:
            problem = error
            break
        budgets.append(budget)
    if not budgets and problem is not None:
        raise problem
    return budgets


def _sample_rows(
    found: AttentionTrace,
    budgets: Sequence[int],
    ratios: Sequence[float],
    predictors: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """Return the spread of smaller samples for each budget, predictor and ratio."""
    from oasis_sim.residency.sample import sample_stats
    from oasis_sim.residency.stats import BEST_SETS, default_predictors

    names = predictors or [n for n in default_predictors(found) if n not in BEST_SETS]
    unfit = [name for name in names if name in BEST_SETS]
    if unfit:
        raise UsageError(f"--sample compares predictors that fetch ahead, not {unfit[0]}")
    return [
        row.to_json()
        for budget in budgets
        for name in names
        for ratio in ratios
        for row in sample_stats(found, budget, ratio, name)
    ]
