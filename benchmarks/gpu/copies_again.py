"""Calibrate and validate the transports that the host drives, on top of an earlier calibration.

    PYTHONPATH=. python benchmarks/gpu/copies_again.py RAW.json OUT_DIR

Probes of `copy_engine` and `naive` are measured here, all others are answered from RAW.json (what
`calibrate --raw` wrote). Writes OUT_DIR/h200.yaml, calibration.json (all readings) and
validation.json (the cases of the matrix with these transports, predicted by that profile).
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_exec import validate as validation
from gpu_exec.calibrate_run import run_calibration
from gpu_exec.cuda_bench import CudaBench
from gpu_exec.device import query_gpus
from gpu_exec.matrix import validation_matrix
from gpu_exec.measure import measure_case
from gpu_exec.origin import measurement_origin
from gpu_exec.predict import WINDOW_STEPS, predict
from gpu_exec.probes import TRANSFER, Notebook, Probe, StepProbe
from gpu_exec.recorded_bench import RecordedBench
from gpu_exec.replay import render_json
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model

DRIVEN = ("copy_engine", "naive")
HOST_BYTES, REPEATS = 4 << 30, 5


class PartlyRecorded:
    """Measure probes of some transports, answer the others from a file."""

    def __init__(self, bench: CudaBench, recorded: RecordedBench) -> None:
        """Take both."""
        self._bench, self._recorded = bench, recorded
        self.card, self.nodes = recorded.card, recorded.nodes

    def measure_ms(self, probe: Probe) -> float:
        """Return the time of one round."""
        if isinstance(probe, StepProbe) and TRANSFER in probe.stages and probe.transport in DRIVEN:
            return self._bench.measure_ms(probe)
        return self._recorded.measure_ms(probe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bench.__exit__(kind, error, traceback)


def main() -> None:
    """Calibrate, then validate."""
    raw, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    model, gpus = load_model("qwen3-8b"), query_gpus()
    command = f"python benchmarks/gpu/copies_again.py {Path(raw).name} OUT_DIR"
    origin = measurement_origin(gpus, command)
    base = load_profile("h200")
    with PartlyRecorded(CudaBench(model, gpus[0]), RecordedBench(raw)) as bench:
        book = Notebook(bench, lambda text: print(text, flush=True))
        result = run_calibration(book, base, model, "h200", origin)
    (out / "calibration.json").write_text(render_json(result.readings))
    (out / "h200.yaml").write_text(result.profile_text)
    print(*result.unstable, sep="\n", flush=True)
    hardware = load_profile(str(out / "h200.yaml"))
    rows: list[validation.Row] = []
    for case in validation_matrix():
        if case.scheme == "dense" or case.transport not in DRIVEN:
            continue
        rows += validation.validate(
            [case],
            lambda case: predict(case, hardware, model, WINDOW_STEPS),
            lambda plan, case, count: measure_case(plan, case, count, HOST_BYTES),
            REPEATS,
            lambda text: print(text, flush=True),
        )
        summary = validation.summarise(rows)
        path = out / "validation.json"
        path.write_text(render_json(validation.to_json(origin, rows, summary)))


if __name__ == "__main__":
    main()
