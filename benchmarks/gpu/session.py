"""Calibrate twice, validate and replay in one go on a rented card, keeping what was measured.

    PYTHONPATH=. python benchmarks/gpu/session.py OUT_DIR [--seconds 700] [--profile FILE]

Writes into OUT_DIR, each file as soon as it exists: doctor.json, h200.yaml, calibration.json
(every reading), validation.json (after every configuration), replay.json, second.yaml,
second.json and repeat.json (a second calibration, and every number of both). Each part runs in a
process of its own, so that a broken CUDA context costs one part or configuration only; what went
wrong or found no time stands in errors.txt. With `--profile` nothing is calibrated; `--only PART`
does one part, more than once several.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from gpu_exec import validate as validation
from gpu_exec.calibrate_run import run_calibration
from gpu_exec.default_run import default_schedule
from gpu_exec.device import compute_processes, query_gpus, refusal
from gpu_exec.doctor import diagnose, to_json
from gpu_exec.matrix import ValidationCase, validation_matrix
from gpu_exec.origin import measurement_origin
from gpu_exec.predict import WINDOW_STEPS, predict
from gpu_exec.probes import Notebook
from gpu_exec.repeatability import Comparison
from gpu_exec.repeatability import to_json as to_comparison
from gpu_exec.replay import render_json, replay
from gpu_exec.replay_table import replay_lines
from gpu_exec.validation_file import read_validation
from oasis_sim.errors import OasisError
from oasis_sim.hardware import load_profile
from oasis_sim.hardware.load import read_profile
from oasis_sim.model import load_model

REPEATS = 5
REPLAY_SECONDS = 45.0
BROKEN = 3
PARTS = ("doctor", "calibrate", "validate", "replay", "repeat")


class Session:
    """Do one part within the seconds that are left."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Load what every part needs."""
        self.out: Path = options.out
        self.end = time.monotonic() + options.seconds
        self.host_bytes = options.host_gib << 30
        measured = self.out / "h200.yaml"
        self.profile = options.profile or (str(measured) if measured.exists() else "h200")
        self.model = load_model("qwen3-8b")
        self.gpus = query_gpus()
        command = f"python benchmarks/gpu/session.py OUT_DIR ({options.part})"
        self.origin = measurement_origin(self.gpus, command)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the seconds that are left."""
        print(f"[{self.left():6.1f} s left] {text}", flush=True)

    def write(self, name: str, document: dict[str, object]) -> None:
        """Write one JSON file."""
        (self.out / name).write_text(render_json(document))

    def doctor(self) -> None:
        """Write what doctor finds; note a card that is not fit for measurements."""
        self.write("doctor.json", to_json(diagnose(expected_link_gb_per_s=64.0)))
        for reason in refusal(self.gpus, compute_processes()):
            note(self.out, f"card: {reason}")

    def calibrate(self) -> None:
        """Measure the profile that the other parts use."""
        self.measure_profile("calibration.json", "h200.yaml")

    def repeat(self) -> None:
        """Measure the profile again and compare every number of it."""
        self.measure_profile("second.json", "second.yaml")
        first, second = (read_profile(self.out / f"{name}.yaml") for name in ("h200", "second"))
        numbers = Comparison(first, second, self.model).numbers()
        document = to_comparison(numbers, asdict(self.origin))
        self.write("repeat.json", document)
        self.say(f"two calibrations: {document['summary']}")

    def measure_profile(self, raw: str, profile: str) -> None:
        """Calibrate; write every reading and the profile."""
        from gpu_exec.cuda_bench import CudaBench

        with CudaBench(self.model, self.gpus[0]) as bench:
            book = Notebook(bench, self.say)
            base = load_profile("h200")
            result = run_calibration(book, base, self.model, "h200", self.origin)
        self.write(raw, result.readings)
        (self.out / profile).write_text(result.profile_text)
        for text in result.unstable:
            note(self.out, f"not repeatable: {text}")

    def validate(self) -> None:
        """Compare case by case, writing after each one, as long as time is left."""
        tried = self.out / "tried.txt"
        done = set(tried.read_text().splitlines()) if tried.exists() else set()
        for case in validation_matrix():
            if case.label() in done:
                continue
            if self.left() < 0:
                note(self.out, f"no time left for {case.label()}")
                continue
            with tried.open("a") as file:
                file.write(case.label() + "\n")
            try:
                self.validate_case(case)
            except OasisError as error:
                note(self.out, f"{case.label()}: {error}")

    def validate_case(self, case: ValidationCase) -> None:
        """Measure one case and add its rows to the file."""
        from gpu_exec.measure import measure_case

        path = self.out / "validation.json"
        hardware = load_profile(self.profile)
        rows = list(read_validation(path)[1]) if path.exists() else []
        rows += validation.validate(
            [case],
            lambda case: predict(case, hardware, self.model, WINDOW_STEPS),
            lambda plan, case, count: measure_case(plan, case, count, self.host_bytes),
            REPEATS,
            self.say,
        )
        summary = validation.summarise(rows)
        self.write("validation.json", validation.to_json(self.origin, rows, summary))

    def replay(self) -> None:
        """Replay the default run, scaled to the card, with the calibrated profile."""
        from gpu_exec.executor_cuda import CudaExecutor

        schedule = default_schedule("cuda", self.profile)
        executor = CudaExecutor(schedule, 1, self.host_bytes)
        try:
            report = replay(schedule, executor, "the default run")
        finally:
            executor.close()
        self.write("replay.json", {**asdict(self.origin), **report.to_json()})
        print("\n".join(replay_lines(report)), flush=True)
        report.check()


def note(out: Path, text: str) -> None:
    """Print a problem and keep it in errors.txt."""
    print(text, flush=True)
    with (out / "errors.txt").open("a") as file:
        file.write(text + "\n")


def run_part(options: argparse.Namespace) -> int:
    """Do one part in this process; return BROKEN after anything unexpected."""
    try:
        getattr(Session(options), options.part)()
    except OasisError as error:
        note(options.out, f"{options.part}: {error}")
    except Exception as error:  # noqa: BLE001 - kept for the report; the next part goes on
        note(options.out, f"{options.part}: {error}\n{traceback.format_exc()}")
        return BROKEN
    return 0


def run_all(options: argparse.Namespace) -> None:
    """Run every part in a process of its own, validation again after a broken configuration."""
    end = time.monotonic() + options.seconds
    for part in options.only or PARTS:
        if part in ("calibrate", "repeat") and options.profile:
            continue
        code = BROKEN
        while code == BROKEN and (left := end - time.monotonic()) > 0:
            reserve = REPLAY_SECONDS if part == "validate" else 0.0
            command = [sys.executable, __file__, str(options.out), "--part", part]
            command += ["--seconds", str(left - reserve), "--host-gib", str(options.host_gib)]
            command += ["--profile", options.profile] if options.profile else []
            try:
                code = subprocess.run(command, check=False, timeout=left).returncode
            except subprocess.TimeoutExpired:
                note(options.out, f"{part}: stopped, no time left")
                break
            if part != "validate":
                break
    path = options.out / "validation.json"
    if path.exists():
        rows = read_validation(path)[1]
        print("\n".join(validation.table_lines(rows, validation.summarise(rows))), flush=True)


def main() -> None:
    """Run all parts, or the one that `--part` names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=700.0)
    parser.add_argument("--host-gib", type=int, default=4)
    parser.add_argument("--profile")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        sys.exit(run_part(options))
    run_all(options)


if __name__ == "__main__":
    main()
