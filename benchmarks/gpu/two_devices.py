"""Everything that needs two GPUs of one host, in one go, keeping whatever was measured.

    PYTHONPATH=. python benchmarks/gpu/two_devices.py OUT_DIR [--seconds 450] [--only NAME ...]

Each step is a process of its own with a time limit; its output is in OUT_DIR/log.txt, and a step
that fails costs nothing but itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLI = [sys.executable, "-m", "oasis_sim.cli.main"]
RUN = [*CLI, "run", "--profile", "h200", "--engine", "gpu_exec", "--tp", "2", "--requests", "128"]
RUN += ["--concurrency", "128", "--output-tokens", "1024", "--host-memory", "2000GB"]
NETWORK = [*CLI, "calibrate", "--network"]


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
        "run": ([*RUN, "--out", str(run)], 60.0),
        "replay": ([*CLI, "replay", "--gpu", "--devices", "2", str(run)], 120.0),
        "tests": ([*pytest, test], 60.0),
        "collectives": ([sys.executable, str(HERE / "collectives.py"),
                         str(out / "collectives-h200.json")], 60.0),
        "network": ([*NETWORK, "--memory", "gpu", *network], 200.0),
        "host": ([*NETWORK, *host], 180.0),
    }  # fmt: skip


def main() -> None:
    """Run the steps while time is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    run = Path(tempfile.mkdtemp()) / "run-tp2"
    for name, (command, limit) in steps(options.out, run).items():
        if options.only and name not in options.only:
            continue
        left = end - time.monotonic()
        started = time.monotonic()
        code: int | str = "not run, no time left"
        text = ""
        if left > 5:
            try:
                done = subprocess.run(
                    command,
                    check=False,
                    timeout=min(limit, left),
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                code, text = done.returncode, done.stdout
            except subprocess.TimeoutExpired as stopped:
                code, text = "stopped, took too long", str(stopped.stdout)
            except OSError as error:
                code = str(error)
        taken = time.monotonic() - started
        note = f"== {name}: {code}, {taken:.1f} s: {' '.join(command[1:])}\n{text}\n"
        print(note[:200], text[-1500:], flush=True)
        if name == "replay" and (run / "replay.json").exists():
            shutil.copy(run / "replay.json", options.out / "replay-two-h200.json")
        with (options.out / "log.txt").open("a") as file:
            file.write(note)


if __name__ == "__main__":
    main()
