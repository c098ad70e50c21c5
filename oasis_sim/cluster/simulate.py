"""Simulate a disaggregated scenario: build the nodes, serve the workload, collect the result."""

from __future__ import annotations

from dataclasses import replace

from oasis_sim.cluster.apart import Front, Jobs, decode_apart, one_by_one
from oasis_sim.cluster.collect import Fixed, collect
from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.recovery import Recovery
from oasis_sim.cluster.result import ClusterResult
from oasis_sim.cluster.serving import ClusterLoop, Progress
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan, RequestLog
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import check_scenario
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.errors import RunFailed


def simulate_cluster(
    scenario: Scenario,
    cluster: Cluster,
    progress: Progress | None = None,
    jobs: Jobs = one_by_one,
) -> ClusterResult:
    """Run a scenario on prefill and decode nodes and return everything that happened.

    `progress` as in `engine.simulate`; `jobs` may decode nodes on several processes, which changes
    nothing. Raises UsageError for parts that do not go together and RunFailed for what cannot
    fit, with the arithmetic.
    """
    fixed = _fixed(scenario, cluster)
    if scenario.concurrency is None and not cluster.faults.any:
        front = Front(*_parts(fixed), None)
        front.start()
        _run(front)
        steps, end = decode_apart(front, scenario, cluster, jobs, progress)
        if front.memory_suffices(fixed.plan.kv_pool_bytes, fixed.plan.host_capacity_bytes):
            return collect(fixed, front, steps, end)
    loop = ClusterLoop(*_parts(fixed), progress)
    loop.start()
    Recovery(loop).start()
    _run(loop)
    end = loop.now_ps
    return collect(fixed, loop, [node.log.finish(end) for node in loop.decode], end)


def prefill_alone(scenario: Scenario, cluster: Cluster) -> RequestLog:
    """Return the requests with the end of their prefill as first token, decode left out.

    Nodes have memory without bounds, so no run of the cluster prefills sooner, however many its
    decode nodes. Only for requests that arrive at times of their own, and without faults. Raises
    as `simulate_cluster`.
    """
    front = Front(*_parts(_fixed(scenario, cluster)), None)
    front.start()
    _run(front)
    return replace(front.book.log(), first_token_ps=front.record.requests.prefill_end_ps)


def _fixed(scenario: Scenario, cluster: Cluster) -> Fixed:
    """Check a scenario and work out what does not change while it runs."""
    check_scenario(scenario)
    cost = CostModel(
        scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
    )
    workload = scenario.workload
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    plan = plan_memory(cost, longest, scenario.host_bytes)
    walks = build_walks(
        scenario.traces, scenario.scheme, cost.share, scenario.drafter, scenario.seed
    )
    return Fixed(scenario, cluster, cost, plan, walks)


def _parts(fixed: Fixed) -> tuple[Cluster, Demand, MemoryPlan, Walks, RequestBook]:
    """Return what a loop is made of, with a book of its own."""
    scenario, walks = fixed.scenario, fixed.walks
    sizes = NodeSizes(fixed.cost, fixed.cluster, walks)
    growth = Growth(scenario, walks) if sizes.partial else None
    demand = Demand(sizes, growth, walks.tables.group_size)
    book = RequestBook(scenario.workload, scenario.concurrency, scenario.think_ps)
    return fixed.cluster, demand, fixed.plan, walks, book


def _run(loop: ClusterLoop) -> None:
    """Run a loop; raise RunFailed when no request fits."""
    loop.run()
    book = loop.book
    if book.rejected == len(book):
        raise RunFailed(f"no request fits: {book.first_refusal}; {book.advice}")
