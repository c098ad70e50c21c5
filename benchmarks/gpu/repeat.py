"""Compare two calibrations of one card, number by number, from their readings.

    python benchmarks/gpu/repeat.py FIRST.json SECOND.json OUT.json [--base h200]

FIRST and SECOND are what `oasis-sim calibrate --raw` wrote. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_exec.calibrate_run import run_calibration
from gpu_exec.probes import Notebook
from gpu_exec.recorded_bench import RecordedBench
from gpu_exec.repeatability import Comparison, to_json
from gpu_exec.replay import render_json
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.hardware.load import read_profile
from oasis_sim.model import load_model

MODEL = "qwen3-8b"


def derive(bench: RecordedBench, base: HardwareProfile) -> HardwareProfile:
    """Return the profile of recorded readings."""
    model = load_model(MODEL)
    result = run_calibration(Notebook(bench), base, model, base.name, bench.origin)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(result.profile_text)
        return read_profile(path)


def main() -> None:
    """Write the comparison and print its largest differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", default="h200")
    options = parser.parse_args()
    base = load_profile(options.base)
    benches = [RecordedBench(path) for path in (options.first, options.second)]
    first, second = (derive(bench, base) for bench in benches)
    numbers = Comparison(first, second, load_model(MODEL)).numbers()
    names = f"{options.first.name} {options.second.name} {options.out.name}"
    command = f"python benchmarks/gpu/repeat.py {names}"
    origin = {**asdict(benches[1].origin), "first": benches[0].origin.date, "command": command}
    options.out.write_text(render_json(to_json(numbers, origin)))
    for number in sorted(numbers, key=lambda number: -number.difference_pct)[:10]:
        print(f"{number.difference_pct:6.2f} %  {number.field}")


if __name__ == "__main__":
    main()
