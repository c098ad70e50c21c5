"""`oasis-sim run`: simulate one scenario, print the result, write the run directory."""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.disaggregation import disaggregation_from, disaggregation_options
from oasis_sim.cli.idle_options import idle_options
from oasis_sim.cli.lists import scheme_list
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import (
    output_options,
    overridden_inputs,
    scenario_options,
    spec_from,
)
from oasis_sim.cli.terminal import Warnings, note, simulation_bar
from oasis_sim.errors import InputError, UsageError
from oasis_sim.text import plain

if TYPE_CHECKING:
    from oasis_sim.cluster import Cluster
    from oasis_sim.engine.scenario import Scenario
    from oasis_sim.engine.spec import ScenarioSpec
    from oasis_sim.network import NetworkProfile

RUNS = Path("runs")
HASH_CHARACTERS = 10
TOKENS_WORTH_PROCESSES = 2_000_000
"""Fewer output tokens are decoded before other processes have started."""


@click.command(cls=OnceCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", metavar="FILE", help="Start from the config.yaml of a run; options override it."
)
@scenario_options
@disaggregation_options
@click.option(
    "--out",
    metavar="DIR",
    help="Run directory.  [default: runs/NAME-HASH, the same for the same scenario]",
)
@click.option("--force", is_flag=True, help="Replace an earlier run in that directory.")
@output_options
def run(**values: Any) -> None:
    """Simulate a scenario and write a run directory.

    Without options: OasisKV decoding Qwen3-8B on one H100, 128 requests at once, each with a
    context of 16,384 tokens and 2,048 tokens to generate.
    """
    schemes = scheme_list(values["scheme"])
    if len(schemes) > 1:
        run_each(schemes, values)
    else:
        # The table ends with the notes of the run; other formats carry them as data.
        in_table = values["output_format"] == "table"
        show(run_one(values, Warnings(values["quiet"], in_table)), values["output_format"])


def run_each(schemes: Sequence[str], values: Mapping[str, Any]) -> None:
    """Run schemes one after the other, each in a directory of its own, and compare them."""
    from oasis_sim.cli.compare import for_scheme, show_comparison
    from oasis_sim.fileio import AtomicDirectory, directory_path
    from oasis_sim.report.config import read_config
    from oasis_sim.report.side_by_side import Case

    asked = {name: for_scheme(values, name) for name in schemes}
    if values["out"] is not None:
        for name, each in asked.items():
            each["out"] = str(directory_path(values["out"]) / Path(name).stem)
            # All places are settled before the first simulation.
            AtomicDirectory(each["out"], force=values["force"])
    warnings = Warnings(values["quiet"])
    start = None if values["config"] is None else read_config(values["config"]).spec
    cases = [
        Case(name, run_one(each, warnings), spec_from(each, start).scheme)
        for name, each in asked.items()
    ]
    show_comparison(cases, values["output_format"], values["quiet"])


def run_one(values: Mapping[str, Any], warnings: Warnings) -> dict[str, Any]:
    """Simulate one scenario, write its directory and return its summary."""
    from oasis_sim.cluster import load_cluster
    from oasis_sim.report.config import write_config

    started = time.time()
    quiet = values["quiet"]
    spec, scenario, network = load(values)
    config = write_config(spec, scenario, network)
    place = RunPlace.choose(values["out"], values["force"], scenario, config)
    warnings.show(scenario)
    for text in idle_options(values, scenario.scheme, spec.disaggregation is not None):
        warnings.tell(text)
    if spec.disaggregation is None:
        summary, files, tokens = on_one_node(scenario, config, quiet)
    else:
        cluster = load_cluster(spec.disaggregation, scenario, network)
        summary, files, tokens = on_nodes(cluster, scenario, config, quiet, values["workers"])
    place.write(files, log_of(tokens, started), quiet)
    return summary


Outcome = tuple[dict[str, Any], dict[str, bytes], int]
"""Summary, files of the run directory, output tokens."""


def on_one_node(scenario: Scenario, config: str, quiet: bool) -> Outcome:
    """Simulate prefill and decode on the same GPUs."""
    from oasis_sim.engine import simulate
    from oasis_sim.metrics import check_conservation, summarise
    from oasis_sim.report.directory import run_files

    with simulation_bar("simulating", quiet) as progress:
        result = simulate(scenario, progress)
    check_conservation(result)
    summary = summarise(result)
    return summary, run_files(result, config, summary), int(result.steps.output_tokens.sum())


def on_nodes(
    cluster: Cluster, scenario: Scenario, config: str, quiet: bool, workers: int | None
) -> Outcome:
    """Simulate prefill and decode on nodes of their own."""
    from functools import partial

    from oasis_sim.cluster import simulate_cluster
    from oasis_sim.metrics import check_cluster, summarise_cluster
    from oasis_sim.plan.pool import run_jobs, usable_cores
    from oasis_sim.report.directory import cluster_files

    if workers is None:
        large = int(scenario.workload.output_tokens.sum()) >= TOKENS_WORTH_PROCESSES
        workers = usable_cores() if large else 1
    with simulation_bar("simulating", quiet) as progress:
        result = simulate_cluster(scenario, cluster, progress, partial(run_jobs, workers=workers))
    check_cluster(result)
    summary = summarise_cluster(result)
    tokens = result.run.totals.output_tokens
    return summary, cluster_files(result, config, summary), tokens


def load(values: Mapping[str, Any]) -> tuple[ScenarioSpec, Scenario, NetworkProfile | None]:
    """Return the scenario of the options, by name and loaded, and the network of its nodes."""
    from oasis_sim.report.config import check_fingerprints, read_config
    from oasis_sim.report.config_inputs import from_config

    if values["config"] is None:
        spec = with_nodes(spec_from(values), values)
        return spec, spec.scenario(), network_of(spec)
    config = read_config(values["config"])
    spec = with_nodes(spec_from(values, config.spec), values)
    try:
        scenario, network = spec.scenario(), network_of(spec)
    except InputError as error:
        raise from_config(values["config"], spec, error) from None
    check_fingerprints(config, scenario, network, except_for=overridden_inputs(values))
    return spec, scenario, network


def network_of(spec: ScenarioSpec) -> NetworkProfile | None:
    """Return what lies between the nodes of a scenario, None on one node."""
    from oasis_sim.network import load_network

    return None if spec.disaggregation is None else load_network(spec.disaggregation.network)


def with_nodes(spec: ScenarioSpec, values: Mapping[str, Any]) -> ScenarioSpec:
    """Return a scenario with the nodes that options describe."""
    return replace(
        spec, disaggregation=disaggregation_from(values, spec.disaggregation, spec.scheme)
    )


@dataclass(frozen=True)
class RunPlace:
    """Say where a run is written; settled before it is simulated.

    A place that the user named is refused when it is taken, unless `force`. The default place
    follows from the scenario: an earlier run of the same scenario there is kept when its bytes are
    the same, and replaced when nothing else lies in it.
    """

    path: Path
    named: bool
    force: bool

    @classmethod
    def choose(cls, out: str | None, force: bool, scenario: Scenario, config: str) -> RunPlace:
        """Return the place of a run; raise UsageError when it is taken."""
        from oasis_sim.fileio import AtomicDirectory, listed_files
        from oasis_sim.report.directory import is_whole_run

        if out is not None:
            AtomicDirectory(out, force=force)
            return cls(Path(out), named=True, force=force)
        path = RUNS / default_name(scenario, config)
        if listed_files(path) is None:
            AtomicDirectory(path, force=True)
        return cls(path, named=False, force=force or is_whole_run(path))

    def write(self, files: Mapping[str, bytes], log: str, quiet: bool) -> None:
        """Write the run directory and say where it is."""
        from oasis_sim.report.directory import holds_same_run, write_run

        if not self.named and holds_same_run(self.path, files):
            note(f"run directory: {self.path} (there already, with the same bytes)", quiet)
            return
        try:
            write_run(self.path, files, log, force=self.force)
        except UsageError:
            # Another process may have finished the same run in the meantime.
            if self.named or not holds_same_run(self.path, files):
                raise
        note(f"run directory: {self.path}", quiet)


def default_name(scenario: Scenario, config: str) -> str:
    """Return a directory name that is the same for the same scenario."""
    from oasis_sim import __version__

    digest = hashlib.sha256(f"{__version__}\n{config}".encode()).hexdigest()
    parts = (scenario.scheme.name, scenario.model.name, scenario.profile.name)
    words = re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")[:80]
    return f"{words or 'run'}-{digest[:HASH_CHARACTERS]}"


def show(summary: Mapping[str, Any], output_format: str) -> None:
    """Print a summary on standard output."""
    if output_format == "json":
        from oasis_sim.report.directory import json_text

        sys.stdout.write(json_text(summary))
    elif output_format == "csv":
        from oasis_sim.report.csvfile import write_summary

        sys.stdout.write(write_summary(summary))
    else:
        from oasis_sim.report.table import print_view
        from oasis_sim.report.view import view_of

        print_view(view_of(summary), sys.stdout)


def log_of(tokens: int, started: float) -> str:
    """Return the text of `run.log`: when, where and how fast; no result depends on it."""
    import platform

    import numpy as np

    from oasis_sim import __version__

    wall_s = time.time() - started
    lines = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "wall_s": f"{wall_s:.3f}",
        "simulated_output_tokens_per_wall_s": f"{tokens / wall_s:.0f}",
        "command": plain(" ".join(sys.argv)),
        "oasis_sim": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items())
