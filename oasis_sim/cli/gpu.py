"""`oasis-sim replay` and `doctor`. The package `gpu_exec` is imported inside the commands only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oasis_sim.cli.gpu_options import FORMAT, GPU, HELP, HOST_MEMORY, QUIET, emit, size_of
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.reworded import reworded
from oasis_sim.cli.terminal import note, progress_bar
from oasis_sim.errors import UsageError
from oasis_sim.text import plain

if TYPE_CHECKING:
    from oasis_sim.engine import Scenario


LEFT_OUT = (
    "all-reduces between GPUs are not run; the run was simulated again without them, and this "
    "schedule is what is executed and compared"
)


@click.command(cls=OnceCommand, context_settings=HELP)
@click.argument("run_dir", required=False, type=PATH)
@GPU
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="cuda is --gpu; cpu is the reference executor, whose times are not compared.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Devices that share the KV heads.",
)
@click.option(
    "--no-all-reduce",
    is_flag=True,
    help="Leave the all-reduces between devices out, in the simulation too, to see their cost.",
)
@HOST_MEMORY
@FORMAT
@QUIET
def replay(
    run_dir: Path | None,
    gpu: bool,
    device: str | None,
    devices: int,
    no_all_reduce: bool,
    host_memory: str,
    output_format: str,
    quiet: bool,
) -> None:
    """Execute the schedule of RUN_DIR, verify every byte, compare stage by stage.

    Writes replay.json into RUN_DIR. Without RUN_DIR the default run, scaled to the device, is
    simulated first and nothing is written.
    """
    from gpu_exec.default_run import default_schedule
    from gpu_exec.device import require_gpu
    from gpu_exec.left_out import without_all_reduces
    from gpu_exec.open_executor import open_executor
    from gpu_exec.replay import check_report_place, write_report
    from gpu_exec.replay import replay as execute
    from gpu_exec.replay_table import replay_lines
    from gpu_exec.run_dir import load_run_schedule

    kind = _device_kind(gpu, device)
    host_bytes = size_of(host_memory)
    notes: tuple[str, ...] = ()
    schedule = load_run_schedule(run_dir) if run_dir else None
    if run_dir:
        check_report_place(run_dir)
    if kind == "cuda":
        require_gpu()
    if schedule is None:
        note("simulating the default run, scaled to the device", quiet)
        schedule = default_schedule(kind)
    if run_dir and no_all_reduce and schedule.meta.get("tp", 1) > 1:
        schedule = without_all_reduces(_scenario_of(run_dir))
        notes += (LEFT_OUT,)
    executor = open_executor(kind, schedule, devices, host_bytes, not no_all_reduce)
    try:
        with progress_bar("replaying", quiet) as progress:
            source = plain(str(run_dir)) if run_dir else "the default run"
            report = execute(schedule, executor, source, progress, notes)
    finally:
        executor.close()
    if run_dir:
        path = write_report(report, run_dir)
        note(f"written: {path}", quiet)
    emit(report.to_json(), replay_lines(report), output_format)
    report.check()


@reworded(gpu="Exit 5 when the GPU commands cannot run here.")
@click.command(cls=OnceCommand, context_settings=HELP)
@GPU
@click.option("--profile", metavar="NAME|FILE", help="Compare the link with this profile's.")
@FORMAT
def doctor(gpu: bool, profile: str | None, output_format: str) -> None:
    """Check driver, link, pinned memory, free HBM and software of this machine.

    Exits 0 whatever it finds, unless --gpu is given.
    """
    from gpu_exec.device import require_gpu
    from gpu_exec.doctor import diagnose, to_json

    expected = None
    if profile is not None:
        from oasis_sim.hardware import load_profile

        expected = load_profile(profile).pcie.bytes_per_s / 1e9
    checks = diagnose(expected_link_gb_per_s=expected)
    lines = []
    for check in checks:
        advice = f"  ({check.advice})" if check.advice else ""
        lines.append(f"{check.status:<8} {check.name:<22} {check.found}{advice}")
    emit(to_json(checks), lines, output_format)
    if gpu:
        require_gpu()


def _scenario_of(run_dir: Path) -> Scenario:
    """Return what a run directory is the run of; raise InputError when an input has changed."""
    from oasis_sim.fileio import inside
    from oasis_sim.report.config import check_fingerprints, read_config
    from oasis_sim.report.directory import CONFIG_NAME

    config = read_config(inside(run_dir, CONFIG_NAME))
    scenario = config.spec.scenario()
    check_fingerprints(config, scenario)
    return scenario


def _device_kind(gpu: bool, device: str | None) -> str:
    if gpu and device == "cpu":
        raise UsageError("--gpu and --device cpu contradict each other")
    return "cpu" if device == "cpu" else "cuda"
