"""Figure 12: throughput and host memory of a disaggregated pair of nodes, by request rate."""

from __future__ import annotations

from oasis_sim.cluster import ClusterResult
from oasis_sim.cluster.plan import FULL, PARTIAL
from oasis_sim.errors import RunFailed
from oasis_sim.metrics import summarise_cluster
from oasis_sim.model import load_model
from oasis_sim.paper import nodes
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import KeyValue, Published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.scheme import load_scheme
from oasis_sim.units import GIB

NAME = "fig12"
TITLE = "Figure 12: one prefill and one decode node, by request rate, Qwen3-8B"
RATES = (0.34, 0.46, 0.58, 0.70)
SYSTEMS = {
    "dense": ("dense", FULL),
    "full_transfer": ("oasis", FULL),
    "partial_fetch": ("oasis", PARTIAL),
}
UNITS = {
    "output_tokens_per_s": "tok/s",
    "host_gib_mean": "GiB",
    "host_gib_peak": "GiB",
    "host_gib_per_request": "GiB",
}
NOTES = (
    *nodes.NOTES,
    "host memory is that of the decode node, mean over the whole run; per request: mean over mean "
    "of requests that have begun to arrive there",
)


def compare(setup: Setup, published: Published, progress: Progress = no_progress) -> Comparison:
    """Simulate every context, rate and system; `progress` counts them."""
    rows: list[Row] = []
    failures: dict[str, None] = {}
    todo = [(c, rate, s) for c in nodes.CONTEXTS for rate in RATES for s in SYSTEMS]
    for done, (context, rate, system) in enumerate(todo):
        progress(done, len(todo))
        keys: dict[str, KeyValue] = {
            "context_tokens": context,
            "request_rate": rate,
            "system": system,
        }
        scheme, transfer = SYSTEMS[system]
        try:
            found = metrics(nodes.simulated(setup, load_scheme(scheme), transfer, context, rate))
        except RunFailed as error:
            failures[f"{system} at {context:,} tokens: {error}"] = None
            found = {}
        rows += beside(published, NAME, keys, UNITS, found)
    progress(len(todo), len(todo))
    origin = setup.origin_notes(load_model(nodes.MODEL))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *failures, *origin))


def metrics(result: ClusterResult) -> dict[str, float | None]:
    """Return throughput and the decode node's host memory; dense keeps nothing there."""
    summary = summarise_cluster(result)
    found: dict[str, float | None] = {
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"]
    }
    if result.run.scenario.scheme.offload:
        host = summary["tiers"]["host"]
        found["host_gib_mean"] = host["mean_bytes_all_nodes"] / GIB
        found["host_gib_peak"] = host["peak_bytes_all_nodes"] / GIB
        found["host_gib_per_request"] = host["bytes_per_request_mean"] / GIB
    return found
