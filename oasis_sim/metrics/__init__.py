"""Metrics folded from what a run recorded: the summary contract, tables, conservation checks."""

from oasis_sim.metrics.conservation import check_cluster, check_conservation
from oasis_sim.metrics.disaggregated import (
    cluster_requests_table,
    cluster_steps_table,
    summarise_cluster,
    timeline_table,
)
from oasis_sim.metrics.distribution import SAMPLES_FOR_P99, Distribution, distribution
from oasis_sim.metrics.summary import SCHEMA_VERSION, summarise
from oasis_sim.metrics.tables import Table, requests_table, steps_table

__all__ = [
    "SAMPLES_FOR_P99",
    "SCHEMA_VERSION",
    "Distribution",
    "Table",
    "check_cluster",
    "check_conservation",
    "cluster_requests_table",
    "cluster_steps_table",
    "distribution",
    "requests_table",
    "steps_table",
    "summarise",
    "summarise_cluster",
    "timeline_table",
]
