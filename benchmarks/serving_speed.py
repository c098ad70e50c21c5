"""How fast the simulator is: output tokens per second of wall time, and as a machine-free ratio.

    python benchmarks/serving_speed.py [--trace aime.jsonl]

The scenario is a closed loop of 512 requests (16K prompt, 2,048 output tokens, concurrency 256)
on Qwen3-8B with all 36 layers and scheme oasis, after one warm-up of the compiled code. The
comparison loop is plain Python doing the max-plus updates of one layer (three `max`, three
additions); `ratio` is simulated tokens per iteration of that loop, which depends little on the
machine. A second table shows the marginal cost of a step, from the CPU time of a long and a short
run of one batch (64 rows, HBM made large enough), as the number of equal layers grows.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from oasis_sim.engine import Scenario, simulate
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model
from oasis_sim.scheme import load_scheme
from oasis_sim.trace import AttentionTrace, load_trace
from oasis_sim.workload import closed_loop

LOOP = 1_000_000


def python_loop_per_s() -> float:
    """Return iterations per second of the comparison loop."""
    foreground = prediction = transfer = 0
    start = time.perf_counter()
    for i in range(LOOP):
        prediction = max(foreground, prediction) + 3
        transfer = max(prediction, transfer) + (i & 7)
        foreground = max(foreground, transfer) + 5
    return LOOP / (time.perf_counter() - start)


def scenario(trace: AttentionTrace, requests: int, output: int, layers: int) -> Scenario:
    """Return the benchmark's closed loop with so many requests, tokens and layers."""
    model = dataclasses.replace(load_model("qwen3-8b"), layers=layers)
    return Scenario(
        profile=load_profile("h100"),
        engine_name="vllm",
        model=model,
        scheme=load_scheme("oasis"),
        traces=(trace,),
        workload=closed_loop(requests, 16_384, output),
        concurrency=256,
    )


def longer(trace: AttentionTrace, name: str, output: int, layers: int) -> Scenario:
    """Return a run of 64 rows, as long as `output`, on a card that holds any number of layers."""
    h200, scheme = load_profile("h200"), load_scheme(name)
    profile = dataclasses.replace(h200, gpu=dataclasses.replace(h200.gpu, hbm_bytes=2 * 10**12))
    return Scenario(
        profile=profile,
        engine_name="vllm",
        model=dataclasses.replace(load_model("qwen3-8b"), layers=layers),
        scheme=scheme,
        traces=(trace,) if scheme.offload else (),
        workload=closed_loop(64, 16_384, output),
        concurrency=64,
        host_bytes=10**14,
        schedule_steps=0,
    )


def marginal_us(trace: AttentionTrace, scheme: str, layers: int) -> float:
    """Return the CPU time of one more step, in microseconds; the best of three runs counts."""
    cost, steps = [], []
    for output in (1024, 4096):
        case, best = longer(trace, scheme, output, layers), float("inf")
        for _ in range(3):
            start = time.process_time()
            result = simulate(case)
            best = min(best, time.process_time() - start)
        cost.append(best)
        steps.append(len(result.steps))
    return (cost[1] - cost[0]) / (steps[1] - steps[0]) * 1e6


def timed(case: Scenario) -> tuple[float, int, int]:
    """Return (seconds, steps, output tokens) of one simulation."""
    start = time.perf_counter()
    result = simulate(case)
    seconds = time.perf_counter() - start
    return seconds, len(result.steps), int(result.steps.output_tokens.sum())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", default="aime.jsonl")
    trace = load_trace(parser.parse_args().trace)
    timed(scenario(trace, 8, 64, 36))
    loop = python_loop_per_s()
    seconds, steps, tokens = min(timed(scenario(trace, 512, 2048, 36)) for _ in range(3))
    rate = tokens / seconds
    print(f"{tokens} tokens in {steps} steps: {seconds:.2f} s, {rate:,.0f} tokens/s")
    print(f"comparison loop {loop:,.0f} iterations/s, ratio {rate / loop:.3f} tokens/iteration")
    print("scheme  layers  us per further step")
    for scheme in ("oasis", "dense"):
        for layers in (36, 72, 144, 288):
            print(f"{scheme:6s}  {layers:6d}  {marginal_us(trace, scheme, layers):19.1f}")


if __name__ == "__main__":
    main()
