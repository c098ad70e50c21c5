"""Small disaggregated scenarios: a tiny model, a random trace, any number of nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from oasis_sim.cluster import Cluster, ClusterResult, load_cluster, simulate_cluster
from oasis_sim.engine import Scenario
from oasis_sim.engine.spec import DisaggregationSpec
from oasis_sim.metrics import check_cluster
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.workload import Workload, closed_loop, poisson
from tests.engine.scenarios import TINY, card, random_trace

INFINITE: dict[str, Any] = {
    "send_bytes_per_s": 10**15,
    "receive_bytes_per_s": 10**15,
    "latency_ps": 0,
    "posting_ps": 0,
    "completion_ps": 0,
}


def scenario(scheme: str = "oasis", workload: Workload | None = None, **changes: Any) -> Scenario:
    """Return requests of 1,600 prompt and 40 output tokens, 16 blocks chosen of 100."""
    own = load_scheme(scheme)
    if own.offload and own.selects:
        own = with_options(own, budget_tokens=256, fetch_ratio=0.25)
    base = Scenario(
        profile=card(10**9),
        engine_name="vllm",
        model=TINY,
        scheme=own,
        traces=(random_trace(),) if own.selects else (),
        workload=workload or poisson(20.0, 12, 1600, 40, 3),
        host_bytes=10**9,
        schedule_steps=0,
    )
    return dataclasses.replace(base, **changes)


def cluster(given: Scenario, transfer: str | None = None, **changes: Any) -> Cluster:
    """Return one prefill and one decode node on roce-100, with faults and other counts as asked."""
    network = changes.pop("network_changes", {})
    kind = transfer or ("partial" if given.scheme.selects else "full")
    found = load_cluster(DisaggregationSpec(1, 1, "roce-100", kind, **changes), given)
    return dataclasses.replace(found, network=dataclasses.replace(found.network, **network))


def nodes(prefill: int, decode: int, given: Scenario, *faults: str, **changes: Any) -> Cluster:
    """Return so many nodes with these faults."""
    kind = "partial" if given.scheme.selects else "full"
    spec = DisaggregationSpec(prefill, decode, "roce-100", kind, faults=faults, **changes)
    return load_cluster(spec, given)


def run(given: Scenario, on: Cluster) -> ClusterResult:
    """Simulate and check the laws."""
    result = simulate_cluster(given, on)
    check_cluster(result)
    return result


__all__ = ["INFINITE", "closed_loop", "cluster", "nodes", "run", "scenario"]
