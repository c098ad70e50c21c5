"""Simulate a disaggregated scenario: build the nodes, serve the workload, collect the result."""

from __future__ import annotations

from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.picture import slices
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.cluster.serving import ClusterLoop, Progress
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.engine.bounds import roofline_bounds
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import RooflineBounds, RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import check_scenario, notes_of, token_gaps
from oasis_sim.engine.walks import build_walks
from oasis_sim.errors import RunFailed


def simulate_cluster(
    scenario: Scenario, cluster: Cluster, progress: Progress | None = None
) -> ClusterResult:
    """Run a scenario on prefill and decode nodes and return everything that happened.

    `progress` as in `engine.simulate`. Raises UsageError for parts that do not go together and
    RunFailed for what cannot fit, with the arithmetic.
    """
    check_scenario(scenario)
    workload = scenario.workload
    cost = CostModel(
        scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
    )
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    plan = plan_memory(cost, longest, scenario.host_bytes)
    walks = build_walks(
        scenario.traces, scenario.scheme, cost.share, scenario.drafter, scenario.seed
    )
    sizes = NodeSizes(cost, cluster, walks)
    growth = Growth(scenario, walks) if sizes.partial else None
    demand = Demand(sizes, growth, walks.tables.group_size)
    book = RequestBook(workload, scenario.concurrency, scenario.think_ps)
    loop = ClusterLoop(cluster, demand, plan, walks, book, progress)
    loop.run()
    if book.rejected == len(book):
        raise RunFailed(f"no request fits: {book.first_refusal}; {book.advice}")
    record, end = loop.record, loop.now_ps
    steps, node, dense = record.step_log(cost.share.block_bytes(scenario.scheme))
    gaps, counts = token_gaps(steps, 0)
    bounds = roofline_bounds(cost, steps, dense, 0.0)
    run = RunResult(
        scenario=scenario,
        steps=steps,
        requests=book.log(),
        slices=slices(record.requests),
        memory=plan,
        itl_ps=gaps,
        itl_count=counts,
        quality=walks.quality,
        bounds=RooflineBounds(
            bounds.step_ms_lower, bounds.output_tokens_per_s_upper * cluster.decode
        ),
        schedule=None,
        notes=notes_of(scenario, walks, book, steps),
    )
    decode_host, staging = record.held(end)
    fetched = record.fetched_blocks * record.block_bytes
    return ClusterResult(
        cluster=cluster,
        run=run,
        node=node,
        hand_overs=record.requests,
        timeline=record.timeline(),
        decode_host=decode_host,
        staging=staging,
        resident_mean=record.resident.mean(0, end),
        network_bytes=record.hand_over_bytes + fetched + record.vain_bytes,
        hand_over_bytes=record.hand_over_bytes,
        fetched_bytes=fetched,
        vain_bytes=record.vain_bytes,
        stalled_ps=sum(each.stalled_ps for each in loop.decode),
        prefill_busy_ps=record.prefill_busy_ps,
    )
