"""Commands that execute on a GPU (or on the CPU reference): replay, calibrate, validate, doctor.

The package `gpu_exec` is imported inside the commands only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.terminal import note, progress_bar
from oasis_sim.errors import InputError, UsageError
from oasis_sim.text import plain

if TYPE_CHECKING:
    from gpu_exec.device import GpuState

_HELP = {"help_option_names": ["-h", "--help"]}
_FORMAT = click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="What standard output carries.",
)
_QUIET = click.option("--quiet", is_flag=True, help="No progress and notes.")
_GPU = click.option("--gpu", is_flag=True, help="Run on the GPU; exit 5 when there is none.")
_HOST_MEMORY = click.option(
    "--host-memory",
    default="4 GiB",
    show_default=True,
    metavar="SIZE",
    help="Pinned host pool per device; host units are shared when the run models more.",
)


@click.command(context_settings=_HELP)
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
@_GPU
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
@_HOST_MEMORY
@_FORMAT
@_QUIET
def replay(
    run_dir: Path | None,
    gpu: bool,
    device: str | None,
    devices: int,
    host_memory: str,
    output_format: str,
    quiet: bool,
) -> None:
    """Execute the schedule of RUN_DIR, verify every byte, compare stage by stage.

    Writes replay.json into RUN_DIR. Without RUN_DIR the default run, scaled to the device, is
    simulated first and nothing is written.
    """
    from gpu_exec.default_run import default_schedule
    from gpu_exec.open_executor import open_executor
    from gpu_exec.replay import load_run_schedule, write_report
    from gpu_exec.replay import replay as execute
    from gpu_exec.replay_table import replay_lines

    kind = _device_kind(gpu, device)
    host_bytes = _size(host_memory)
    schedule = load_run_schedule(run_dir) if run_dir else None
    if kind == "cuda":
        _require_gpu()
    if schedule is None:
        note("simulating the default run, scaled to the device", quiet)
        schedule = default_schedule(kind)
    executor = open_executor(kind, schedule, devices, host_bytes)
    try:
        with progress_bar("replaying", quiet) as progress:
            source = plain(str(run_dir)) if run_dir else "the default run"
            report = execute(schedule, executor, source, progress)
    finally:
        executor.close()
    if run_dir:
        path = write_report(report, run_dir)
        note(f"written: {path}", quiet)
    _emit(report.to_json(), replay_lines(report), output_format)
    report.check()


@click.command(context_settings=_HELP)
@_GPU
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Profile to write.")
@click.option(
    "--base",
    default="h200",
    show_default=True,
    metavar="NAME|FILE",
    help="Profile that gives limits which one card cannot show (datasheet, network, prefill).",
)
@click.option("--model", default="qwen3-8b", show_default=True, metavar="NAME|FILE")
@click.option("--raw", type=click.Path(path_type=Path), help="Also write every reading as JSON.")
@click.option(
    "--keep-unstable", is_flag=True, help="Write the profile even when rounds disagree; it says so."
)
@_QUIET
def calibrate(
    gpu: bool, out: Path, base: str, model: str, raw: Path | None, keep_unstable: bool, quiet: bool
) -> None:
    """Measure the GPU with micro-benchmarks and write a hardware profile with curves.

    Refuses a card that others use or that is throttled; every figure is measured in rounds that
    must agree within 3 %.
    """
    _need_flag(gpu, "calibrate")
    from gpu_exec.calibrate_run import refuse_bad_card, run_calibration
    from gpu_exec.origin import measurement_origin
    from gpu_exec.probes import Notebook
    from gpu_exec.replay import render_json
    from oasis_sim.fileio import write_atomic
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model

    profile, shape = load_profile(base), load_model(model)
    gpus = _require_gpu()
    refuse_bad_card()
    from gpu_exec.cuda_bench import CudaBench

    origin = measurement_origin(gpus, _command_line())
    with CudaBench(shape, gpus[0]) as bench:
        book = Notebook(bench, lambda text: note(text, quiet))
        result = run_calibration(book, profile, shape, out.stem.lower(), origin)
    if raw is not None:
        write_atomic(raw, render_json(result.readings))
    refuse_bad_card()
    if not keep_unstable:
        result.check()
    write_atomic(out, result.profile_text)
    click.echo(f"profile written: {plain(str(out))}")


@click.command(context_settings=_HELP)
@_GPU
@click.option("--profile", default="h200", show_default=True, metavar="NAME|FILE")
@click.option("--model", default="qwen3-8b", show_default=True, metavar="NAME|FILE")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result file.  [default: validation/CARD.json]",
)
@click.option("--repeats", type=click.IntRange(5, 1000), default=5, show_default=True)
@_HOST_MEMORY
@_FORMAT
@_QUIET
def validate(
    gpu: bool,
    profile: str,
    model: str,
    out: Path | None,
    repeats: int,
    host_memory: str,
    output_format: str,
    quiet: bool,
) -> None:
    """Compare simulated and measured step times over configurations never used to calibrate.

    Exits 4 when the median error exceeds 3 % or any error 8 %; the file is written either way.
    """
    _need_flag(gpu, "validate")
    from gpu_exec import validate as validation
    from gpu_exec.calibrate_run import profile_name, refuse_bad_card
    from gpu_exec.matrix import validation_matrix
    from gpu_exec.origin import measurement_origin
    from gpu_exec.predict import WINDOW_STEPS, predict
    from gpu_exec.replay import render_json
    from oasis_sim.fileio import write_atomic
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model

    hardware, shape = load_profile(profile), load_model(model)
    host_bytes = _size(host_memory)
    gpus = _require_gpu()
    refuse_bad_card()
    from gpu_exec.measure import measure_case

    origin = measurement_origin(gpus, _command_line())
    rows = validation.validate(
        validation_matrix(),
        lambda case: predict(case, hardware, shape, WINDOW_STEPS),
        lambda schedule, case, count: measure_case(schedule, case, count, host_bytes),
        repeats,
        lambda text: note(text, quiet),
    )
    summary = validation.summarise(rows)
    document = validation.to_json(origin, rows, summary)
    path = out or Path("validation") / f"{profile_name(gpus[0].name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render_json(document))
    note(f"written: {path}", quiet)
    _emit(document, validation.table_lines(rows, summary), output_format)
    validation.check(summary)


@click.command(context_settings=_HELP)
@_GPU
@click.option("--profile", metavar="NAME|FILE", help="Compare the link with this profile's.")
@_FORMAT
def doctor(gpu: bool, profile: str | None, output_format: str) -> None:
    """Check driver, link, pinned memory, free HBM and software of this machine.

    Exits 0 whatever it finds, but 5 with --gpu when the GPU commands cannot run here.
    """
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
    _emit(to_json(checks), lines, output_format)
    if gpu:
        _require_gpu()


def _device_kind(gpu: bool, device: str | None) -> str:
    if gpu and device == "cpu":
        raise UsageError("--gpu and --device cpu contradict each other")
    return "cpu" if device == "cpu" else "cuda"


def _need_flag(gpu: bool, command: str) -> None:
    if not gpu:
        raise UsageError(f"{command} works on a GPU only; say so with --gpu")


def _require_gpu() -> tuple[GpuState, ...]:
    from gpu_exec.device import require_gpu

    return require_gpu()


def _size(text: str) -> int:
    from oasis_sim.units import parse_bytes

    try:
        size = parse_bytes(text)
    except InputError as error:
        raise UsageError(f"--host-memory: {error}") from None
    if size < 1 << 20:
        raise UsageError("--host-memory must be 1 MiB or more")
    return size


def _command_line() -> str:
    return " ".join(["oasis-sim", *sys.argv[1:]])


def _emit(document: dict[str, Any], lines: list[str], output_format: str) -> None:
    """Print the result alone on standard output."""
    if output_format == "json":
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        for line in lines:
            click.echo(plain(line))
