"""Everything that needs two GPUs of one host, in one go, keeping whatever was measured.

    PYTHONPATH=. python benchmarks/gpu/two_devices.py OUT_DIR [--run DIR] [--seconds 450]
        [--only NAME ...]

Each step is a process of its own with a time limit; its output is in OUT_DIR/log.txt, of a step
that takes too long with the place of every thread. Without tests that pass and a replay that is
right, nothing else is measured. `--run` names the directory of the run, simulated before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.common import machine

HERE = Path(__file__).resolve().parent
CLI = [sys.executable, "-m", "oasis_sim.cli.main"]
RUN = [*CLI, "run", "--profile", "h200", "--engine", "gpu_exec", "--tp", "2", "--requests", "128"]
RUN += ["--concurrency", "128", "--output-tokens", "1024", "--host-memory", "2000GB"]
REPLAY = [*CLI, "replay", "--gpu", "--devices", "2", "--quiet"]
NETWORK = [*CLI, "calibrate", "--network"]
NEEDED = ("tests", "replay")
REPORTS = {"replay": "replay-two-h200.json", "alone": "replay-two-alone-h200.json"}
GRACE_S = 5.0


def steps(out: Path, run: Path) -> dict[str, tuple[list[str], float]]:
    """Return the command and the longest time of each step, in order."""
    test = "tests/gpu_exec/test_replay_devices_gpu.py"
    network = ["--raw", str(out / "network-nvlink-h200.json")]
    network += ["--out", str(out / "network-nvlink-h200.yaml"), "--bandwidth", "450 GB/s"]
    host = ["--raw", str(out / "network-host-h200.json")]
    host += ["--out", str(out / "network-host-h200.yaml")]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider"]
    return {
        "topology": (["nvidia-smi", "topo", "-m"], 20.0),
        "tests": ([*pytest, "-o", "faulthandler_timeout=40", test], 60.0),
        "run": ([*RUN, "--out", str(run)], 60.0),
        "replay": ([*REPLAY, str(run)], 60.0),
        "alone": ([*REPLAY, "--no-all-reduce", str(run)], 60.0),
        "collectives": ([sys.executable, str(HERE / "collectives.py"),
                         str(out / "collectives-h200.json")], 40.0),
        "ablations": ([sys.executable, str(HERE / "two_ablations.py"), str(run), str(out)], 120.0),
        "network": ([*NETWORK, "--memory", "gpu", *network], 200.0),
        "host": ([*NETWORK, *host], 180.0),
    }  # fmt: skip


def perform(command: list[str], seconds: float) -> tuple[int | str, str]:
    """Run a command; return its exit code, or why there is none, and its output."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        return str(error), ""
    with suppress(subprocess.TimeoutExpired):
        text = process.communicate(timeout=seconds)[0]
        return process.returncode, text
    process.send_signal(signal.SIGABRT)  # it tells where its threads are
    try:
        text = process.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        text = process.communicate()[0]
    return "stopped, took too long", text


def keep_report(run: Path, target: Path, command: list[str]) -> None:
    """Copy a run's replay.json with the machine, the date and the command."""
    report = run / "replay.json"
    if report.exists():
        document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        words = " ".join(["oasis-sim", *command[len(CLI) :]]).replace(str(run), run.name)
        document |= {"source": run.name, **machine(), "command": words}
        target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        report.unlink()


def main() -> int:
    """Run the steps while time is left; return 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    run = Path(tempfile.mkdtemp()) / "run-tp2"
    if options.run is not None:
        shutil.copytree(options.run, run)
    wanted = options.only or list(steps(options.out, run))
    failed = False
    for name, (command, limit) in steps(options.out, run).items():
        if name not in wanted or (name == "run" and options.run is not None):
            continue
        started = time.monotonic()
        left = end - started
        code, text = perform(command, min(limit, left)) if left > 5 else ("no time left", "")
        taken = time.monotonic() - started
        note = f"== {name}: {code}, {taken:.1f} s: {' '.join(command[1:])}\n{text}\n"
        print(note[:200], text[-1500:], flush=True)
        with (options.out / "log.txt").open("a") as file:
            file.write(note)
        if name in REPORTS:
            keep_report(run, options.out / REPORTS[name], command)
        failed = failed or code != 0
        if code != 0 and name in NEEDED:
            break
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
