"""The two nodes of Figures 12 and 14: one prefill and one decode node with one GPU each."""

from __future__ import annotations

import dataclasses

import numpy as np

from oasis_sim.cluster import ClusterResult, load_cluster, simulate_cluster
from oasis_sim.engine import Scenario
from oasis_sim.engine.spec import DisaggregationSpec
from oasis_sim.metrics import check_cluster
from oasis_sim.model import load_model
from oasis_sim.paper.setup import Setup
from oasis_sim.scheme import Scheme
from oasis_sim.units import GIB, PS_PER_S
from oasis_sim.workload import Workload, poisson

MODEL = "qwen3-8b"
CONTEXTS = (24_576, 32_768)
REQUESTS = 192
OUTPUT_TOKENS = 2_048
HOST_BYTES = 400 * GIB
NETWORK = "roce-400"
NOTES = (
    f"scenario: {REQUESTS} requests of {OUTPUT_TOKENS:,} output tokens, one prefill and one decode "
    f"node with one GPU and {HOST_BYTES // GIB} GiB of host memory each, network {NETWORK}",
    "random arrivals, stretched so that the last one comes at requests / rate, as vLLM's "
    "benchmark client does",
)


def simulated(
    setup: Setup, scheme: Scheme, transfer: str, context_tokens: int, rate: float
) -> ClusterResult:
    """Run one point; raises RunFailed when it cannot fit."""
    scenario = Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=load_model(MODEL),
        scheme=scheme,
        traces=setup.traces if scheme.selects else (),
        workload=arrivals(rate, context_tokens),
        host_bytes=HOST_BYTES,
        schedule_steps=0,
    )
    spec = DisaggregationSpec(1, 1, NETWORK, transfer, remote_bytes=HOST_BYTES)
    result = simulate_cluster(scenario, load_cluster(spec, scenario))
    check_cluster(result)
    return result


def arrivals(rate: float, context_tokens: int) -> Workload:
    """Return random arrivals whose last one comes at requests / rate."""
    random = poisson(rate, REQUESTS, context_tokens, OUTPUT_TOKENS, 0)
    last = REQUESTS / rate * PS_PER_S
    stretched = random.arrival_ps * (last / int(random.arrival_ps[-1]))
    return dataclasses.replace(random, arrival_ps=np.rint(stretched).astype(np.int64))
