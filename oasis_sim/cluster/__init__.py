"""Prefill and decode on nodes of their own: KV over the network, remote partial fetching."""

from oasis_sim.cluster.plan import Cluster, load_cluster
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.cluster.simulate import ClusterRun, SoFar, prefill_alone, simulate_cluster

__all__ = [
    "Cluster",
    "ClusterResult",
    "ClusterRun",
    "SoFar",
    "load_cluster",
    "prefill_alone",
    "simulate_cluster",
]
