"""Validate the transports that the host drives alone: the cases of the matrix with these.

    PYTHONPATH=. python benchmarks/gpu/copies_again.py PROFILE OUT.json

PROFILE is a name or a file. OUT.json is written after every case.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_exec import validate as validation
from gpu_exec.device import query_gpus
from gpu_exec.matrix import DENSE, validation_matrix
from gpu_exec.measure import measure_case
from gpu_exec.origin import measurement_origin
from gpu_exec.predict import WINDOW_STEPS, predict
from gpu_exec.replay import render_json
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model

DRIVEN = ("copy_engine", "naive")
HOST_BYTES, REPEATS = 4 << 30, 5


def main() -> None:
    """Predict and measure case by case."""
    profile, out = sys.argv[1], Path(sys.argv[2])
    model, hardware = load_model("qwen3-8b"), load_profile(profile)
    command = f"python benchmarks/gpu/copies_again.py {Path(profile).name} OUT.json"
    origin = measurement_origin(query_gpus(), command)
    rows: list[validation.Row] = []
    for case in validation_matrix():
        if case.scheme == DENSE or case.transport not in DRIVEN:
            continue
        rows += validation.validate(
            [case],
            lambda case: predict(case, hardware, model, WINDOW_STEPS),
            lambda plan, case, count: measure_case(plan, case, count, HOST_BYTES),
            REPEATS,
            lambda text: print(text, flush=True),
        )
        summary = validation.summarise(rows)
        out.write_text(render_json(validation.to_json(origin, rows, summary)))


if __name__ == "__main__":
    main()
