"""Time and memory of a large disaggregated run, with one process and with two.

    python benchmarks/disaggregated_speed.py [--requests 20000] [--output-tokens 512]

Qwen3-8B on H100s, 16 prefill and 64 decode nodes, roce-400, partial fetching, random arrivals that
the prefill nodes can just serve. The run directory's files of both runs are compared byte for byte.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from functools import partial

from oasis_sim.cluster import load_cluster, simulate_cluster
from oasis_sim.engine.spec import DisaggregationSpec, LoadSpec, ScenarioSpec
from oasis_sim.metrics import check_cluster, summarise_cluster
from oasis_sim.plan.pool import run_jobs
from oasis_sim.report.directory import cluster_files, manifest_of

PREFILL, DECODE = 16, 64


def main() -> None:
    """Run both and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--output-tokens", type=int, default=512)
    parser.add_argument("--rate", type=float, default=35.0)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 1])
    options = parser.parse_args()
    load = LoadSpec(
        "poisson", options.requests, options.context, options.output_tokens, options.rate
    )
    nodes = DisaggregationSpec(PREFILL, DECODE, "roce-400", "partial")
    scenario = ScenarioSpec(load=load, concurrency=None).scenario()
    cluster = load_cluster(nodes, scenario)
    found, manifests = [], []
    for workers in options.workers:
        started, used = time.monotonic(), _cpu_s()
        result = simulate_cluster(scenario, cluster, jobs=partial(run_jobs, workers=workers))
        check_cluster(result)
        summary = summarise_cluster(result)
        simulated = time.monotonic() - started
        manifests.append(manifest_of(cluster_files(result, "config", summary)))
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        found.append(
            {
                "workers": workers,
                "wall_s": round(simulated, 1),
                "cpu_s": round(_cpu_s() - used, 1),
                "steps": summary["steps"]["count"],
                "output_tokens": summary["throughput"]["output_tokens"],
                "running_batch": summary["steps"]["running_batch"]["mean"],
                "peak_mib": [round(resource.getrusage(k).ru_maxrss / 1024) for k in kinds],
            }
        )
    same = all(manifest == manifests[0] for manifest in manifests)
    document = {"options": vars(options), "runs": found, "same_bytes": same}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    if not same:
        raise SystemExit("the runs differ")


def _cpu_s() -> float:
    """Return the processor time of this process and of those that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(k).ru_utime + resource.getrusage(k).ru_stime for k in kinds)


if __name__ == "__main__":
    main()
