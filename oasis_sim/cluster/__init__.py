"""Prefill and decode on nodes of their own: KV over the network, remote partial fetching."""

from oasis_sim.cluster.plan import Cluster, load_cluster
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.cluster.simulate import prefill_alone, simulate_cluster

__all__ = ["Cluster", "ClusterResult", "load_cluster", "prefill_alone", "simulate_cluster"]
