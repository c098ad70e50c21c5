"""How long a sweep of all schemes takes on one core, and how memory grows with the workload.

    python benchmarks/all_schemes.py                   # all schemes x 6 concurrencies x 2 contexts
    python benchmarks/all_schemes.py --requests 100000 # one workload of that many short requests

The sweep is Qwen3-8B on one H100, engine `vllm`, trace `aime`: two requests per place and 512
output tokens each. What does not fit is refused, which counts as done. One process and one thread;
CPU time is what a quiet core would take. The long workload is a closed loop of 128 places, with 64
prompt and 16 output tokens per request; memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from oasis_sim.engine import RunResult, Scenario, simulate
from oasis_sim.errors import OasisError
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme, scheme_names
from oasis_sim.trace import load_trace
from oasis_sim.workload import closed_loop

CONCURRENCIES = (8, 16, 32, 64, 128, 256)
CONTEXTS = (16_384, 32_768)
OUTPUT_TOKENS = 512
TARGET_S = 60.0
PLACES, SHORT_PROMPT, SHORT_OUTPUT = 128, 64, 16


def sweep(schemes: Sequence[str]) -> list[tuple[str, float, int, int]]:
    """Simulate every point; return (scheme, CPU seconds, points run, points refused)."""
    profile, model, trace = load_profile("h100"), load_model("qwen3-8b"), load_trace("aime")
    rows = []
    for name in schemes:
        begin, run, refused = time.process_time(), 0, 0
        for context in CONTEXTS:
            for concurrency in CONCURRENCIES:
                case = Scenario(
                    profile=profile,
                    engine_name="vllm",
                    model=model,
                    scheme=load_scheme(name),
                    traces=(trace,),
                    workload=closed_loop(2 * concurrency, context, OUTPUT_TOKENS),
                    concurrency=concurrency,
                    schedule_steps=0,
                )
                try:
                    simulate(case)
                    run += 1
                except OasisError:
                    refused += 1
        rows.append((name, time.process_time() - begin, run, refused))
    return rows


def short_requests(requests: int) -> RunResult:
    """Simulate so many short requests in a closed loop."""
    return simulate(
        Scenario(
            profile=load_profile("h100"),
            engine_name="vllm",
            model=load_model("qwen3-8b"),
            scheme=load_scheme("oasis"),
            traces=(load_trace("aime"),),
            workload=closed_loop(requests, SHORT_PROMPT, SHORT_OUTPUT),
            concurrency=PLACES,
            schedule_steps=0,
        )
    )


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_memory(requests: int) -> None:
    """Print time, steps and growth of memory of one long workload after a short one."""
    short_requests(2 * PLACES)
    before, begin = peak_bytes(), time.process_time()
    result = short_requests(requests)
    grown = peak_bytes() - before
    print(
        f"{requests:,} requests, {len(result.steps):,} steps: "
        f"{time.process_time() - begin:.1f} s CPU, peak memory {peak_bytes() / 1e6:.0f} MB, "
        f"grown by {grown / 1e6:.1f} MB ({grown / requests:.0f} bytes per request)"
    )


def main() -> None:
    """Measure and print; exit with 1 when the sweep misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, help="measure memory on so many requests instead")
    requests = parser.parse_args().requests
    if requests is not None:
        measure_memory(requests)
        return
    wall, cpu = time.perf_counter(), time.process_time()
    rows = sweep(scheme_names())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print("scheme               CPU s  run  refused")
    for name, seconds, run, refused in rows:
        print(f"{name:<20s} {seconds:5.2f}  {run:3d}  {refused:7d}")
    print(f"{len(rows)} schemes: {cpu:.1f} s CPU, {wall:.1f} s wall, {peak_bytes() / 1e6:.0f} MB")
    if cpu > TARGET_S:
        sys.exit(f"more than {TARGET_S:.0f} s of CPU time")


if __name__ == "__main__":
    main()
