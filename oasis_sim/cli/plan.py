"""`oasis-sim plan`: the smallest fleet that meets latency targets at a rate."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.asked import options_shown, repeated
from oasis_sim.cli.disaggregation import disaggregation_options_but_workers
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import output_options, scenario_options_but_scheme
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.plan_jobs import jobs_of
from oasis_sim.cli.plan_more import asked_about, crossovers_of, evidence_of, in_order
from oasis_sim.cli.report_files import check_place, format_of, write_report
from oasis_sim.cli.reworded import reworded
from oasis_sim.cli.terminal import note, simulations_told
from oasis_sim.errors import InputError, TargetMissed

if TYPE_CHECKING:
    from oasis_sim.plan.evidence import Evidence
    from oasis_sim.plan.fleet import Answer, Job
    from oasis_sim.plan.plan_view import Plan

DEFAULT_SCHEMES = "dense,oasis"
UNSAID = ("workers", "quiet", "output_format", "reports", "force")
"""Options that change nothing in the result: the command that repeats it goes without them."""


@reworded(
    concurrency="Most requests in a replica, or on all nodes, at once.  [default: no bound]",
    requests="Requests simulated.  [default: 500 random arrivals or more, or the whole file]",
    rate="Random arrivals per second (Poisson), of the whole load.",
    every="Plan for every n-th request of that file.",
    tp="GPUs of a replica or node.  [default: 1, 2, 4 and 8 are tried]",
    disaggregated="Search the fewest prefill and decode nodes, each a number or LOW..HIGH, such "
    "as 1..4:1..16.",
    steps="",
)
@click.command(cls=OnceCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--gpu", metavar="NAMES", help="Hardware profiles, with commas.  [default: that of --profile]"
)
@click.option(
    "--scheme",
    default=DEFAULT_SCHEMES,
    show_default=True,
    metavar="NAMES",
    help="KV cache schemes, with commas.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="NAME=VALUES",
    help="Let a part of the schemes take several values, such as fetch_ratio=0.02,0.05 or "
    "budget=1024..4096x2. Repeatable.",
)
@click.option(
    "--slo",
    required=True,
    multiple=True,
    metavar="TARGETS",
    help="Such as 'ttft_p95=2s,tpot_p99=50ms'; all must be met. Repeatable.",
)
@click.option("--price-file", metavar="FILE", help="Your prices: currency and gpu_hour by profile.")
@click.option(
    "--most-gpus",
    type=click.IntRange(1, 1_000_000),
    default=1024,
    show_default=True,
    help="Largest fleet to consider.",
)
@click.option(
    "--workers", type=click.IntRange(1, 4096), help="Processes.  [default: one per usable core]"
)
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Ask again with a higher rate, longer contexts, a slower link, less host memory.",
)
@click.option(
    "--where-offload-pays",
    is_flag=True,
    help="Compare with dense at 1 to 256 requests at once, on the recommended card.",
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="Write a report (.html, .md, .csv); asks both of the above. Repeatable.",
)
@click.option("--force", is_flag=True, help="Replace existing files of --report.")
@scenario_options_but_scheme
@disaggregation_options_but_workers
@output_options
@click.pass_context
def plan(ctx: click.Context, /, **values: Any) -> None:
    """Find the fewest GPUs that meet latency targets at a rate, by simulation.

    The load is --rate with --context and --output-tokens, or --workload. For each card and scheme
    the smallest number of replicas that meets the targets is bracketed and then bisected; a replica
    must also keep up (at most 5 % of its requests wait at the last arrival). Targets: ttft, tpot,
    itl or e2e with _mean or _p1 to _p99. Exit code 4 when no fleet meets them.

    A replica is one node that prefills and decodes. --disaggregated 1..4:1..16 sets them apart and
    finds the fewest prefill and decode nodes that meet the targets together, under the whole load
    (docs/planning.md has the rules). A price file says 'currency: USD' and 'gpu_hour: {h100: 2.5}'.
    """
    from oasis_sim.plan.plan_view import Asked, Plan
    from oasis_sim.plan.prices import Prices, read_prices

    for path in values["reports"]:
        format_of(path)
        check_place(path, force=values["force"])
    prices = Prices() if values["price_file"] is None else read_prices(values["price_file"])
    jobs = jobs_of(values)
    asked = Asked(repeated(ctx, UNSAID), options_shown(ctx, UNSAID), fingerprints_of(jobs))
    found = Plan(answers_of(jobs, values), prices, asked)
    if values["sensitivity"] or values["reports"]:
        found = asked_about(found, values)
    evidence = evidence_of(found, values) if values["reports"] else None
    if evidence is not None or values["where_offload_pays"]:
        found = replace(found, crossovers=crossovers_of(found, evidence, values))
    write_reports(found, evidence, values)
    show(found, evidence, values["output_format"])
    if not found.ranked():
        raise TargetMissed("no fleet meets the targets; what is missing is listed above")


def answers_of(jobs: list[Job], values: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Answer the jobs on all cores, in their order."""
    from oasis_sim.plan.inputs import Inputs
    from oasis_sim.plan.planner import find_fleet, make_planner
    from oasis_sim.plan.prober import Tally

    inputs = Inputs()
    for job in jobs:
        workload = inputs.scenario(job.spec).workload
        if job.spec.load.rate_per_s is None and not workload.span_s:
            raise InputError(
                "all requests arrive at once, so there is no rate to plan for",
                file=job.spec.load.file,
                fix="use requests that arrive over some time, or --rate",
            )
    note("1 search" if len(jobs) == 1 else f"{len(jobs)} searches", values["quiet"])
    if len(jobs) > 1:
        return tuple(in_order(make_planner, jobs, values, "searching"))
    with simulations_told("searching", values["quiet"]) as tell:
        return (find_fleet(jobs[0], inputs, Tally(tell)),)


def fingerprints_of(jobs: Sequence[Job]) -> dict[str, dict[str, str]]:
    """Return the fingerprints of what the jobs read, by card."""
    from oasis_sim.plan.inputs import Inputs
    from oasis_sim.report.fingerprints import fingerprints

    inputs = Inputs()
    return {
        job.spec.profile: fingerprints(inputs.scenario(job.spec), inputs.network(job.spec))
        for job in jobs
    }


def write_reports(found: Plan, evidence: Evidence | None, values: Mapping[str, Any]) -> None:
    """Write the plan's report into each file that was asked for."""
    from oasis_sim.plan.plan_json import as_json
    from oasis_sim.report.page.of_plan import plan_report

    for path in values["reports"]:
        write_report(plan_report(as_json(found, evidence)), path, format_of(path))
        note(f"report: {path}", values["quiet"])


def show(found: Plan, evidence: Evidence | None, output_format: str) -> None:
    """Print a plan; what the table says in sentences goes to standard error for CSV."""
    from oasis_sim.plan.plan_json import as_json
    from oasis_sim.plan.plan_view import chart_lines, rows, sentences
    from oasis_sim.report.csvfile import write_rows
    from oasis_sim.report.directory import json_text
    from oasis_sim.report.table import print_rows
    from oasis_sim.text import one_line, plain

    if output_format == "json":
        sys.stdout.write(json_text(as_json(found, evidence)))
        return
    if output_format == "csv":
        fleets = [dict(each) for each in as_json(found)["fleets"]]
        for each in fleets:
            each.pop("replica")
            for target in each.pop("targets"):
                each[f"{target['name']}_ms"] = target["value_ms"]
            if "fails_with_nodes" in each:
                each["fails_with_nodes"] = " ".join(each["fails_with_nodes"])
        names = list(dict.fromkeys(name for each in fleets for name in each))
        write = [names, *([each.get(name) for name in names] for each in fleets)]
        sys.stdout.write(write_rows(write))
        for text in sentences(found):
            note(text)
        return
    if found.ranked():
        print_rows(rows(found), sys.stdout)
        sys.stdout.write("\n")
    for text in sentences(found):
        sys.stdout.write(f"- {one_line(text)}\n")
    for line in chart_lines(found):
        sys.stdout.write(f"{plain(line)}\n")
