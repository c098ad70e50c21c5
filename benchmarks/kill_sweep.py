"""Kill sweeps with SIGKILL at random moments, go on, and compare with a sweep left alone.

    python benchmarks/kill_sweep.py --trials 200 --out validation/kill-sweep.json

Each trial starts a sweep of 20 small runs as a process of its own (every fifth with two workers),
kills it after a random part of the time that such a sweep takes, and every other time kills the
sweep that goes on from there as well. Checked after each kill: whatever run is there is whole by
its manifest, no table is cut off. In the end: no run that was there was simulated again, the tables
have the bytes of the undisturbed sweep, and nothing half-written is left.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from oasis_sim.cli.main import main as run_command
from oasis_sim.plan.store import Store
from oasis_sim.trace import save_trace
from oasis_sim.trace.synth import synthesize
from oasis_sim.trace.synth_presets import preset

POINTS = 20
TABLES = ("results.csv", "results.parquet")
TWO_WORKERS_EVERY = 5


def words(place: Path, trace: Path, workers: int) -> list[str]:
    """Return the command line of the small sweep."""
    size = ["--budget", "64", "--context", "400", "--output-tokens", "20"]
    grid = ["--trace", str(trace), "--vary", f"concurrency=1..{POINTS}"]
    return ["sweep", *size, *grid, "--out", str(place), "--workers", str(workers), "--quiet"]


def start(arguments: list[str]) -> int:
    """Start a command as a child that has loaded the simulator already; return its id."""
    child = os.fork()
    if child:
        return child
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os._exit(run_command(arguments))


def runs_of(place: Path) -> dict[str, int]:
    """Return the runs that are there, with the time at which each was written."""
    whole = [path for path in place.glob("runs/*/manifest.json") if path.parent.name[0] != "."]
    return {path.parent.name: path.stat().st_mtime_ns for path in whole}


def problems_after_kill(place: Path, whole: dict[str, bytes], before: dict[str, int]) -> list[str]:
    """Return what a kill has broken; `before` are the runs that an earlier kill had left."""
    store, kept = Store(place), runs_of(place)
    found = [f"run {key} is not whole" for key in kept if store.load(key) is None]
    found += [f"run {key} was simulated again" for key in before if kept.get(key) != before[key]]
    for name, content in whole.items():
        with contextlib.suppress(FileNotFoundError):
            if (place / name).read_bytes() != content:
                found.append(f"{name} is cut off or differs")
    return found


def killed(arguments: list[str], after_s: float) -> bool:
    """Start a command, kill it after a time, and tell whether it was still at work."""
    child = start(arguments)
    time.sleep(after_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def trial(
    number: int, place: Path, trace: Path, whole: dict[str, bytes], takes_s: dict[int, float]
) -> dict[str, Any]:
    """Kill one sweep once or twice, go on, and return what was seen."""
    chance = random.Random(number)
    workers = 2 if number % TWO_WORKERS_EVERY == 0 else 1
    found: list[str] = []
    kept: dict[str, int] = {}
    kills = []
    for _ in range(1 + number % 2):
        after_s = chance.random() * takes_s[workers]
        hit = killed(words(place, trace, workers), after_s)
        if place.exists():
            found += problems_after_kill(place, whole, kept)
        kept = runs_of(place)
        kills.append({"after_s": round(after_s, 4), "at_work": hit, "runs_kept": len(kept)})
    code = os.waitstatus_to_exitcode(os.waitpid(start(words(place, trace, 1)), 0)[1])
    found += [f"going on ended with code {code}"] if code else []
    found += problems_after_kill(place, whole, kept)
    found += [f"{name} is missing" for name in whole if not (place / name).is_file()]
    found += [f"{path.name} is left" for path in place.rglob("*.partial")]
    repeated = len(runs_of(place)) - len(kept)
    return {"workers": workers, "kills": kills, "simulated_after": repeated, "problems": found}


def described() -> dict[str, str]:
    """Return when this was measured, and of which commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"date": now, "commit": commit}


def timed(arguments: list[str]) -> float:
    """Run a command as a child and return how long it took, in seconds."""
    begin = time.monotonic()
    os.waitpid(start(arguments), 0)
    return time.monotonic() - begin


def main() -> None:
    """Run the trials and write what each one saw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    when = described()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        trace = root / "small.npz"
        small = preset("aime").replace(
            context_tokens=400, steps=16, stored_blocks=20, recorded_layers=2
        )
        save_trace(synthesize(small), trace)
        run_command(words(root / "warm", trace, 1))
        takes_s = {n: timed(words(root / f"whole{n}", trace, n)) for n in (1, 2)}
        whole = {
            name: (root / "whole1" / name).read_bytes()
            for name in TABLES
            if (root / "whole1" / name).is_file()
        }
        rows = [trial(n, root / f"t{n}", trace, whole, takes_s) for n in range(asked.trials)]
    failed = sum(bool(row["problems"]) for row in rows)
    kills = [kill for row in rows for kill in row["kills"]]
    result = {
        **when,
        "command": f"python benchmarks/kill_sweep.py --trials {asked.trials} --out {asked.out}",
        "points": POINTS,
        "undisturbed_s_by_workers": {str(n): round(s, 4) for n, s in takes_s.items()},
        "tables_compared": sorted(whole),
        "trials": len(rows),
        "trials_with_problems": failed,
        "kills": len(kills),
        "kills_at_work": sum(kill["at_work"] for kill in kills),
        "rows": rows,
    }
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows)} trials, {len(kills)} kills, {failed} trials with problems")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
