"""Figure 15: how much sooner the first token comes with partial fetching, by prefix hits.

As in the paper an estimate, no simulation:

    TTFT_full = (1 - h) T_p + S_full / BW
    TTFT_partial = (1 - h) T_p + t_x + S_union / BW

with h the share of prefix hits, T_p prefill, t_x one extra decode step, S bytes, BW the nominal
rate. S_union and t_x are simulated. T_p is the paper's at 24K on an H100; elsewhere it scales like
the prefill of the cost model.
"""

from __future__ import annotations

from oasis_sim.cluster import load_cluster
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.plan import PARTIAL
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.engine import Scenario
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.spec import DisaggregationSpec
from oasis_sim.engine.walks import build_walks
from oasis_sim.hardware import HardwareProfile, load_profile
from oasis_sim.model import load_model
from oasis_sim.paper import nodes
from oasis_sim.paper.comparison import Comparison, Row, beside
from oasis_sim.paper.published import Published
from oasis_sim.paper.setup import Setup
from oasis_sim.scheme import load_scheme
from oasis_sim.units import PS_PER_S
from oasis_sim.workload import closed_loop

NAME = "fig15"
TITLE = "Figure 15: TTFT of full transfer over that of partial fetching, Qwen3-8B"
HITS = (0.1, 0.3, 0.5, 0.7, 0.9)
GBITS = (100, 200, 400)
BYTES_PER_GBIT = 125_000_000
REFERENCE = ("h100", "vllm", 24_576)
UNITS = {"ttft_speedup": "x"}


def compare(setup: Setup, published: Published) -> Comparison:
    """Work out every context, share of hits and network."""
    rows: list[Row] = []
    notes = ["estimate from the paper's own equation, at the nominal rate of the network"]
    for context in nodes.CONTEXTS:
        sizes, growth = parts(setup, context)
        prefill = prefill_s(setup, published, context)
        extra = sizes.extra_step_ps(context) / PS_PER_S
        full = context * sizes.kv_token
        union = growth.need(0, context).union * sizes.block_layer
        notes.append(
            f"{context:,} tokens: T_p {prefill:.2f} s, t_x {1e3 * extra:.1f} ms, union "
            f"{union / full:.1%} of {full / 1e9:.2f} GB"
        )
        for hits in HITS:
            for gbit in GBITS:
                rate = gbit * BYTES_PER_GBIT
                left = (1 - hits) * prefill
                speedup = (left + full / rate) / (left + extra + union / rate)
                keys = {
                    "context_tokens": context,
                    "hit_fraction": hits,
                    "network_gbit_per_s": gbit,
                }
                rows += beside(published, NAME, keys, UNITS, {"ttft_speedup": speedup})
    origin = setup.origin_notes(load_model(nodes.MODEL))
    return Comparison(NAME, TITLE, tuple(rows), (*notes, *origin))


def prefill_s(setup: Setup, published: Published, context: int) -> float:
    """Return T_p: the published one, scaled by the cost model's prefill times."""
    name, engine, tokens = REFERENCE
    stated = published.value(NAME, {"context_tokens": tokens}, "prefill_s")
    assert stated is not None
    there = _cost(load_profile(name), engine).prefill_ps(0, tokens)
    return stated * _cost(setup.profile, setup.engine).prefill_ps(0, context) / there


def _cost(profile: HardwareProfile, engine: str) -> CostModel:
    return CostModel(profile, engine, load_model(nodes.MODEL), load_scheme("oasis"), 1)


def parts(setup: Setup, context: int) -> tuple[NodeSizes, Growth]:
    """Return the sizes of a request and what it needs at first."""
    scenario = Scenario(
        profile=setup.profile,
        engine_name=setup.engine,
        model=load_model(nodes.MODEL),
        scheme=load_scheme("oasis"),
        traces=setup.traces,
        workload=closed_loop(1, context, nodes.OUTPUT_TOKENS),
    )
    cost = _cost(setup.profile, setup.engine)
    walks = build_walks(scenario.traces, scenario.scheme, cost.share, None, 0)
    cluster = load_cluster(DisaggregationSpec(1, 1, nodes.NETWORK, PARTIAL), scenario)
    return NodeSizes(cost, cluster, walks), Growth(scenario, walks)
