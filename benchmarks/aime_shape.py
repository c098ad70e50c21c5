"""One workload of AIME's shape for both sides of Table 2: short prompts, long answers.

    python benchmarks/aime_shape.py [--output-tokens 21500]

Qwen3-8B on one H100, engine `vllm`: 128 requests in the system, prompts of 150 tokens, answers of
equal length that end evenly spaced. Contexts grow from nothing to the whole answer; where all KV
stays in HBM the newest requests are preempted and recomputed. Rates are over all steps between the
end of the first answers and the last admission. Published: 1,235 tok/s dense, 2,083 OasisKV at
ratio 0.05 (arXiv 2608.08097, Table 2), whose contexts are not stated.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from oasis_sim.engine import simulate
from oasis_sim.hardware import load_profile
from oasis_sim.paper.fig11 import spread
from oasis_sim.paper.fig13 import scenario
from oasis_sim.paper.setup import Setup
from oasis_sim.paper.table2 import REQUESTS
from oasis_sim.trace import load_trace
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import closed_loop

PROMPT_TOKENS, OUTPUT_TOKENS = 150, 21_500
MORE = 160
BUDGETS = {"dense": 0, "oasis": 128}


def main() -> None:
    """Simulate both and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    output = parser.parse_args().output_tokens
    setup = Setup(load_profile("h100"), "vllm", (load_trace("aime"),))
    loop = spread(closed_loop(REQUESTS + MORE, PROMPT_TOKENS, output), REQUESTS)
    print("system  tok/s  batch  mean context  preempted")
    for name, budget in BUDGETS.items():
        result = simulate(replace(scenario(setup, "8b", budget), workload=loop))
        steps, requests = result.steps, result.requests
        begin, end = np.sort(requests.finish_ps)[REQUESTS // 2], requests.admitted_ps.max()
        inside = (steps.start_ps >= begin) & (steps.end_ps <= end)
        span = (steps.end_ps - steps.start_ps)[inside].astype(float)
        rows = (steps.sparse_rows + steps.dense_rows)[inside]
        rate = steps.output_tokens[inside].sum() * PS_PER_S / span.sum()
        context = steps.context_tokens[inside].astype(float) @ span / (rows @ span)
        print(
            f"{name:<7s} {rate:5.0f}  {rows @ span / span.sum():5.1f}  {context:12.0f}  "
            f"{requests.preemptions.sum():9d}"
        )


if __name__ == "__main__":
    main()
