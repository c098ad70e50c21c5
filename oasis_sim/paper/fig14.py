"""Figure 14: what remote partial fetching sends at first and later, by fetch ratio."""

from __future__ import annotations

from oasis_sim.cluster import ClusterResult
from oasis_sim.cluster.plan import PARTIAL
from oasis_sim.metrics import summarise_cluster
from oasis_sim.model import load_model
from oasis_sim.paper import nodes
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Progress, Setup, no_progress
from oasis_sim.scheme import load_scheme, with_options
from oasis_sim.units import GIB

NAME = "fig14"
TITLE = "Figure 14: KV sent at admission and fetched later, by fetch ratio (1 = all), Qwen3-8B"
RATIOS = (0.01, 0.02, 0.05, 0.10, 0.20, 1.0)
RATE = 0.70
UNITS = {
    "admission_gib": "GiB",
    "drift_gib": "GiB",
    "network_gb_per_s_mean": "GB/s",
    "network_gb_per_s_peak": "GB/s",
}
NOTES = (
    *nodes.NOTES,
    f"{RATE} requests per second; admission and drift are means over requests, drift after "
    f"{nodes.OUTPUT_TOKENS:,} tokens; the network carries both, and keys and draft KV from GPU to "
    "GPU; peak over one second",
    "drift beyond the recorded steps of the trace follows the growth fitted to them "
    "(docs/disaggregation.md)",
)


def compare(setup: Setup, published: Published, progress: Progress = no_progress) -> Comparison:
    """Simulate every context and fetch ratio; `progress` counts them."""
    rows: list[Row] = []
    todo = [(context, ratio) for context in nodes.CONTEXTS for ratio in RATIOS]
    for done, (context, ratio) in enumerate(todo):
        progress(done, len(todo))
        scheme = with_options(load_scheme("oasis"), fetch_ratio=ratio)
        keys = {"context_tokens": context, "fetch_ratio": ratio}
        found = metrics(nodes.simulated(setup, scheme, PARTIAL, context, RATE))
        rows += beside(published, NAME, keys, UNITS, found)
    progress(len(todo), len(todo))
    origin = setup.origin_notes(load_model(nodes.MODEL))
    return Comparison(NAME, TITLE, tuple(rows), (*NOTES, *origin))


def metrics(result: ClusterResult) -> dict[str, float | None]:
    """Return what one request is sent and fetches, and the network's rates."""
    summary = summarise_cluster(result)
    between, network = summary["disaggregation"], summary["links"]["network"]
    return {
        "admission_gib": between["hand_over_bytes_mean"] / GIB,
        "drift_gib": between["drift_bytes_mean"] / GIB,
        "network_gb_per_s_mean": network["gb_per_s_mean"],
        "network_gb_per_s_peak": network["gb_per_s_peak"],
    }
