"""`oasis-sim sweep`: simulate a grid of scenarios, resumable, into one table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.disaggregation import disaggregation_options_but_workers
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import FORMATS, scenario_options
from oasis_sim.cli.reworded import reworded
from oasis_sim.cli.sweep_points import canonical_grid, points_of
from oasis_sim.cli.terminal import note, points_done
from oasis_sim.errors import EXIT_INTERRUPTED, InputError, RunFailed

if TYPE_CHECKING:
    from oasis_sim.plan.store import Store
    from oasis_sim.plan.sweep import Cell, Runner, Shard
    from oasis_sim.plan.table import Row
    from oasis_sim.report.page.document import Curves

SWEEPS = Path("sweeps")
MOST_BARS = 40


def read_shard(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int]:
    """Read `i/n`, the i-th of n shares, counted from 1."""
    if value is None:
        return 1, 1
    first, slash, last = value.partition("/")
    if slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise click.BadParameter(f"{value!r}: write i/n with i from 1 to n, such as 2/8", ctx, param)


@reworded(scheme="KV cache scheme; several: --vary scheme=dense,oasis.  [default: oasis]")
@click.command(cls=OnceCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("grid_file", metavar="[GRID.yaml]", required=False)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=VALUES",
    help="Let an option take several values: 0.01,0.05 or 8..256x2 or 10..50+10. Repeatable.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="Where runs and tables are kept.  [default: sweeps/HASH of the grid]",
)
@click.option("--dry-run", is_flag=True, help="List the points and what is there; run nothing.")
@click.option(
    "--workers", type=click.IntRange(1, 4096), help="Processes.  [default: one per usable core]"
)
@click.option(
    "--cluster",
    type=click.Choice(["ray"]),
    help="Simulate on a Ray cluster: that of RAY_ADDRESS, or one on this machine.",
)
@click.option(
    "--shard",
    callback=read_shard,
    metavar="i/n",
    help="Simulate every n-th point, from the i-th on.",
)
@click.option(
    "--parquet/--no-parquet",
    default=None,
    help="Write results.parquet too.  [default: where pyarrow is installed]",
)
@click.option("--quiet", is_flag=True, help="No progress and notes.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="What standard output carries.",
)
@scenario_options
@disaggregation_options_but_workers
def sweep(grid_file: str | None, vary: Sequence[str], out: str | None, **values: Any) -> int:
    """Simulate every point of a grid and write one table.

    GRID.yaml holds `base` (fixed options) and `vary` (lists or ranges); options given here come
    before it. Each scenario is kept under its content: the same command goes on where it was
    stopped, a larger grid in the same --out repeats nothing. Ctrl-C, a full disk or a --shard
    leave results.partial.csv, whose rows say which points are missing.
    """
    from oasis_sim.fileio import directory_path
    from oasis_sim.plan.inputs import Inputs
    from oasis_sim.plan.store import Store
    from oasis_sim.plan.sweep import Shard, cells_of

    grid = canonical_grid(grid_file, vary, values)
    cells = cells_of(points_of(grid), Inputs())
    store = Store(SWEEPS / name_of(cells) if out is None else directory_path(out))
    shard = Shard(*values["shard"])
    if values["dry_run"]:
        return show(cells, store, values)
    values["parquet"] = wants_parquet(values["parquet"])
    run = runner(values)
    with store.opened(grid, alone=shard.count == 1):
        return work(cells, store, shard, run, values)


def name_of(cells: Sequence[Cell]) -> str:
    """Return a directory name that is the same for the same points."""
    from oasis_sim.plan.store import key_of

    return key_of("\n".join(cell.key for cell in cells))[:10]


def wants_parquet(asked: bool | None) -> bool:
    """Tell whether to write Parquet; refuse before the work, not after it, without pyarrow."""
    from importlib.util import find_spec

    from oasis_sim.plan.table import parquet_bytes

    if asked:
        parquet_bytes([])
    return find_spec("pyarrow") is not None if asked is None else asked


def runner(values: Mapping[str, Any]) -> Runner:
    """Return what does the jobs: processes of this machine, or a Ray cluster."""
    from functools import partial

    from oasis_sim.plan.cluster import require_ray, run_on_ray
    from oasis_sim.plan.pool import run_jobs, usable_cores

    if values["cluster"] is None:
        return partial(run_jobs, workers=values["workers"] or usable_cores())
    require_ray()
    return partial(run_on_ray, workers=values["workers"])


def work(
    cells: Sequence[Cell], store: Store, shard: Shard, run: Runner, values: Mapping[str, Any]
) -> int:
    """Simulate what is missing, write the tables, also when it ends early; show the result."""
    from oasis_sim.plan.sweep import missing, simulate_cells

    todo, quiet = missing(cells, store, shard), values["quiet"]
    note(f"{len(cells)} points, {len(todo)} to simulate, into {store.path}", quiet)
    try:
        with points_done("simulating", quiet) as progress:
            simulate_cells(todo, store, run, progress)
    except KeyboardInterrupt:
        kept = write_tables(cells, store, values)
        note(f"interrupted; {kept}; the same command goes on from here")
        return EXIT_INTERRUPTED
    except Exception:
        keep_what_is_there(cells, store, values)
        raise
    note(write_tables(cells, store, values), quiet)
    return show(cells, store, values)


def keep_what_is_there(cells: Sequence[Cell], store: Store, values: Mapping[str, Any]) -> None:
    """Write the table of an attempt that failed, as far as the place still permits."""
    from oasis_sim.errors import OasisError

    try:
        note(write_tables(cells, store, values))
    except (OSError, OasisError):
        note(f"no room for results.partial.csv either; the runs in {store.runs} are whole")


def write_tables(cells: Sequence[Cell], store: Store, values: Mapping[str, Any]) -> str:
    """Write the table in its formats and say in words what it holds."""
    from oasis_sim.plan.sweep import rows_of
    from oasis_sim.plan.table import MISSING, REFUSED, csv_text, parquet_bytes

    rows = rows_of(cells, store)
    lacking = sum(row.status == MISSING for row in rows)
    refused = sum(row.status == REFUSED for row in rows)
    try:
        path = store.write_table("results.csv", csv_text(rows), whole=not lacking)
        if values["parquet"]:
            store.write_table("results.parquet", parquet_bytes(rows), whole=not lacking)
    except InputError as error:
        raise RunFailed(
            f"{error.file}: {error.problem}; the runs are kept: make room and run the same command"
        ) from None
    parts = [f"{len(rows) - lacking} of {len(rows)} points"]
    parts += [f"{refused} of them do not fit"] if refused else []
    parts += [f"PARTIAL: {lacking} missing"] if lacking else []
    return f"{path}: {', '.join(parts)}"


def show(cells: Sequence[Cell], store: Store, values: Mapping[str, Any]) -> int:
    """Print the points and what is known about them."""
    from oasis_sim.plan.sweep import rows_of
    from oasis_sim.plan.table import csv_text
    from oasis_sim.report.directory import json_text
    from oasis_sim.report.table import print_rows

    rows = rows_of(cells, store)
    if values["output_format"] == "csv":
        sys.stdout.write(csv_text(rows))
    elif values["output_format"] == "json":
        sys.stdout.write(json_text([row.cells() for row in rows]))
    else:
        print_rows(headlines(rows), sys.stdout)
        sys.stdout.writelines(f"{line}\n" for line in chart_lines(rows))
    return 0


def chart_lines(rows: Sequence[Row]) -> list[str]:
    """Return throughput as bars, where a terminal has room for them, and the Pareto plot."""
    from oasis_sim.report.chart import Bar, draw
    from oasis_sim.report.numbers import NOTHING, number
    from oasis_sim.report.page.plain_plot import plot

    bars = []
    for row in rows:
        label = " ".join(NOTHING if text is None else text for text in row.point.values())
        value = row.cells().get("throughput.output_tokens_per_s")
        bars.append(Bar(label, value, row.status if value is None else number(value)))
    known = [bar for bar in bars if bar.value is not None]
    if len(known) < 2:
        return []
    lines = ["", *draw(f"output tokens/s by {', '.join(rows[0].point)}", bars)]
    curves = pareto_curves(rows)
    return (lines if len(bars) <= MOST_BARS else []) + (["", *plot(curves)] if curves else [])


def pareto_curves(rows: Sequence[Row]) -> Curves | None:
    """Return tokens/s of a GPU over those of a user, None where no number is varied."""
    from oasis_sim.report.page.of_sweep import SweepPoint, pareto_of

    points = [
        SweepPoint(row.point, None if row.outcome is None else row.outcome.summary, row.status)
        for row in rows
    ]
    return pareto_of(points)


def headlines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the few numbers of each point that a terminal has room for."""
    from oasis_sim.report.numbers import NOTHING, number, percent

    axes = list(rows[0].point)
    table = [
        [*axes, "tokens/s", "TPOT p50 ms", "TPOT p99 ms", "TTFT p50 ms", "batch", "PCIe", "status"]
    ]
    for row in rows:
        cells = row.cells()
        point = [NOTHING if cells[axis] is None else str(cells[axis]) for axis in axes]
        numbers = [
            number(cells.get(name))
            for name in (
                "throughput.output_tokens_per_s",
                "latency.tpot_ms.p50",
                "latency.tpot_ms.p99",
                "latency.ttft_ms.p50",
                "steps.running_batch.mean",
            )
        ]
        link = percent(cells.get("links.pcie_h2d.utilisation"))
        table.append([*point, *numbers, link, row.status])
    return table
