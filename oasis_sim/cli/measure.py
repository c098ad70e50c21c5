"""`oasis-sim calibrate` and `validate`: what a card measures, beside what is simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oasis_sim.cli.gpu_options import (
    FORMAT,
    GPU,
    HELP,
    HOST_MEMORY,
    QUIET,
    command_line,
    emit,
    given,
    same_place,
    size_of,
)
from oasis_sim.cli.network import MEMORIES, calibrate_network
from oasis_sim.cli.once import OnceCommand
from oasis_sim.cli.options import rate_in_bytes
from oasis_sim.cli.path_type import PATH
from oasis_sim.cli.terminal import note
from oasis_sim.errors import InputError, UsageError

if TYPE_CHECKING:
    from gpu_exec.calibrate_run import CalibrationResult
    from gpu_exec.matrix import ValidationCase
    from gpu_exec.validate import Origin, Row
    from oasis_sim.engine.schedule import Schedule
    from oasis_sim.hardware import HardwareProfile
    from oasis_sim.model import ModelShape


_MODEL = click.option(
    "--model",
    default="qwen3-8b",
    show_default=True,
    metavar="NAME|FILE",
    help="Model whose shapes are measured.",
)


@click.command(cls=OnceCommand, context_settings=HELP)
@GPU
@click.option("--network", is_flag=True, help="Measure transfers between two processes or hosts.")
@click.option("--out", type=PATH, help="Profile to write.")
@click.option(
    "--base",
    default="h200",
    show_default=True,
    metavar="NAME|FILE",
    help="Profile that gives limits which one card cannot show (datasheet, network, prefill).",
)
@_MODEL
@click.option("--raw", type=PATH, help="Also write every reading as JSON.")
@click.option("--from-raw", type=PATH, help="Derive the profile from such a file.")
@click.option(
    "--keep-unstable", is_flag=True, help="Write the profile even when rounds disagree; it says so."
)
@click.option("--peer", metavar="HOST:PORT", help="network: measure from a host that serves.")
@click.option("--serve", metavar="HOST:PORT", help="network: serve one measurement from elsewhere.")
@click.option(
    "--memory",
    type=click.Choice(MEMORIES),
    default=MEMORIES[0],
    show_default=True,
    help="network: which memories; gpu on one machine takes two GPUs.",
)
@click.option(
    "--device", type=click.IntRange(0, 255), default=0, help="network: the GPU that --serve uses."
)
@click.option(
    "--bandwidth",
    callback=rate_in_bytes,
    metavar="RATE",
    help="network: nominal rate of the link, such as '400 Gbit/s'.  [default: the best measured]",
)
@FORMAT
@QUIET
def calibrate(**values: Any) -> None:
    """Measure this machine and write what the simulator needs of it.

    With --gpu: micro-benchmarks of the card, a hardware profile with curves. Refuses a card that
    others use or that is throttled; every figure is measured in rounds that must agree within 3 %.
    With --from-raw nothing is measured and no GPU is needed.

    With --network: transfers of scattered units through NIXL (extra 'network'), every byte
    verified, and a network profile; exits 4 when the model is off by more than 10 % in the median
    of the transfers that it was not fitted to. Between two processes of this machine, or with
    --peer and, on the other host, --serve.
    """
    if values["network"]:
        calibrate_network(values)
        return
    _check_card_options(values)
    from gpu_exec.replay import render_json
    from oasis_sim.fileio import check_writable, write_atomic
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model

    for path in (values["out"], values["raw"]):
        if path is not None:
            check_writable(path)
    profile, shape = load_profile(values["base"]), load_model(values["model"])
    if values["from_raw"] is None:
        result = _measure_card(profile, shape, values)
    else:
        result = _derive_again(profile, shape, values)
    if values["raw"] is not None:
        write_atomic(values["raw"], render_json(result.readings))
    if not values["keep_unstable"]:
        result.check()
    write_atomic(values["out"], result.profile_text)
    document = {
        "profile": str(values["out"]),
        "probes": len(result.readings["readings"]),
        "unstable": list(result.unstable),
    }
    usage = f"use it with --profile {values['out']} --engine gpu_exec"
    emit(document, [f"profile written: {values['out']}", usage], values["output_format"])


def _check_card_options(values: Mapping[str, Any]) -> None:
    """Raise UsageError for options that do not go with measuring a card."""
    of_network = given("peer", "serve", "bandwidth", "memory", "device")
    if of_network:
        raise UsageError(f"{of_network[0]} belongs to --network")
    if values["out"] is None:
        raise UsageError("name the profile to write with --out FILE")
    if values["from_raw"] is None and not values["gpu"]:
        raise UsageError("say what to measure: --gpu or --network")
    if values["from_raw"] is not None and (values["gpu"] or values["raw"]):
        raise UsageError("--from-raw derives from an earlier measurement; drop --gpu and --raw")
    for name in ("raw", "from_raw"):
        if values[name] is not None and same_place(values[name], values["out"]):
            raise UsageError(f"--out and --{name.replace('_', '-')} name the same file")


def _measure_card(
    profile: HardwareProfile, model: ModelShape, values: Mapping[str, Any]
) -> CalibrationResult:
    from gpu_exec.calibrate_run import refuse_bad_card, run_calibration
    from gpu_exec.device import require_gpu
    from gpu_exec.origin import measurement_origin
    from gpu_exec.probes import Notebook

    gpus = require_gpu()
    refuse_bad_card()
    from gpu_exec.cuda_bench import CudaBench

    origin = measurement_origin(gpus, command_line())
    with CudaBench(model, gpus[0]) as bench:
        book = Notebook(bench, lambda text: note(text, values["quiet"]))
        result = run_calibration(book, profile, model, values["out"].stem.lower(), origin)
    refuse_bad_card(expected=1)
    return result


def _derive_again(
    profile: HardwareProfile, model: ModelShape, values: Mapping[str, Any]
) -> CalibrationResult:
    from gpu_exec.calibrate_run import run_calibration
    from gpu_exec.probes import Notebook
    from gpu_exec.recorded_bench import RecordedBench

    bench = RecordedBench(values["from_raw"])
    name = values["out"].stem.lower()
    return run_calibration(Notebook(bench), profile, model, name, bench.origin)


@click.command(cls=OnceCommand, context_settings=HELP)
@GPU
@click.option(
    "--profile",
    default="h200",
    show_default=True,
    metavar="NAME|FILE",
    help="Hardware profile that is simulated.",
)
@_MODEL
@click.option(
    "--out",
    type=PATH,
    help="Result file.  [default: validation/CARD.json]",
)
@click.option(
    "--measured",
    type=PATH,
    help="Simulate again what such a file measured; needs no GPU and writes nothing.",
)
@click.option(
    "--repeats",
    type=click.IntRange(5, 1000),
    default=5,
    show_default=True,
    help="Runs of each configuration.",
)
@HOST_MEMORY
@FORMAT
@QUIET
def validate(**values: Any) -> None:
    """Compare simulated and measured step times over configurations never used to calibrate.

    Exits 4 when the median error exceeds 3 % or any error 8 %; the file is written either way.
    """
    if values["measured"] is None and not values["gpu"]:
        raise UsageError("say what to compare: --gpu measures, --measured FILE needs no GPU")
    if values["measured"] is not None:
        dropped = given("gpu", "out", "repeats", "host_memory")
        if dropped:
            raise UsageError(
                f"--measured measures and writes nothing; drop {', '.join(dropped)} (its result "
                "is what --format json prints)"
            )
    from gpu_exec import validate as validation
    from gpu_exec.predict import WINDOW_STEPS, predict
    from oasis_sim.fileio import check_writable
    from oasis_sim.hardware import load_profile
    from oasis_sim.model import load_model

    hardware, shape = load_profile(values["profile"]), load_model(values["model"])

    def simulated(case: ValidationCase) -> Schedule:
        return predict(case, hardware, shape, WINDOW_STEPS)

    if values["measured"] is None:
        if values["out"] is not None:
            check_writable(values["out"])
        origin, rows = _measure_matrix(simulated, values)
    else:
        from gpu_exec.validation_file import read_validation

        origin, measured = read_validation(values["measured"])
        rows = validation.simulate_again(measured, simulated)
    summary = validation.summarise(rows)
    document = validation.to_json(origin, rows, summary)
    if values["measured"] is None:
        _write_validation(document, origin.gpu, values)
    emit(document, validation.table_lines(rows, summary), values["output_format"])
    validation.check(summary)


def _measure_matrix(
    simulated: Callable[[ValidationCase], Schedule], values: Mapping[str, Any]
) -> tuple[Origin, tuple[Row, ...]]:
    from gpu_exec import validate as validation
    from gpu_exec.calibrate_run import refuse_bad_card
    from gpu_exec.device import require_gpu
    from gpu_exec.matrix import validation_matrix
    from gpu_exec.origin import measurement_origin

    host_bytes = size_of(values["host_memory"])
    gpus = require_gpu()
    refuse_bad_card()
    from gpu_exec.measure import measure_case

    origin = measurement_origin(gpus, command_line())
    result_place(values["out"], origin.gpu)
    return origin, validation.validate(
        validation_matrix(),
        simulated,
        lambda schedule, case, count: measure_case(schedule, case, count, host_bytes),
        values["repeats"],
        lambda text: note(text, values["quiet"]),
    )


def result_place(out: Path | None, gpu: str) -> Path:
    """Return where the result of `validate` goes, and make its default directory.

    Raise InputError where it cannot be written: before the measurement, not after it.
    """
    from gpu_exec.calibrate_run import profile_name
    from oasis_sim.fileio import check_writable, printable

    path = out or Path("validation") / f"{profile_name(gpu)}.json"
    if out is None:
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            problem = f"cannot be made ({error.strerror})"
            raise InputError(problem, file=printable(path.parent), fix="use --out FILE") from None
    check_writable(path)
    return path


def _write_validation(document: Mapping[str, Any], gpu: str, values: Mapping[str, Any]) -> None:
    from gpu_exec.replay import render_json
    from oasis_sim.fileio import write_atomic

    path = result_place(values["out"], gpu)
    write_atomic(path, render_json(document))
    note(f"written: {path}", values["quiet"])
