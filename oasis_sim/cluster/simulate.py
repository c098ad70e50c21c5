"""Simulate a disaggregated scenario: build the nodes, serve the workload, collect the result."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.apart import Front, Jobs, decode_apart, one_by_one
from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.nodelog import NodeSteps
from oasis_sim.cluster.picture import slices
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.result import ClusterResult, Held, Timeline, join_steps, some_steps
from oasis_sim.cluster.series import BIN_PS, Level, add_series
from oasis_sim.cluster.serving import ClusterLoop, Progress
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.engine.bounds import RooflineParts, bounds_of
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import MemoryPlan, RooflineBounds, RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import check_scenario, notes_of
from oasis_sim.engine.totals import merge_totals
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.errors import RunFailed


class _Builder:
    """Build loops for one scenario, each with a book of its own."""

    def __init__(self, scenario: Scenario, cluster: Cluster, progress: Progress | None) -> None:
        check_scenario(scenario)
        self.scenario, self.cluster, self.progress = scenario, cluster, progress
        self.cost = CostModel(
            scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
        )
        workload = scenario.workload
        longest = int((workload.prompt_tokens + workload.output_tokens).max())
        self.plan: MemoryPlan = plan_memory(self.cost, longest, scenario.host_bytes)
        self.walks: Walks = build_walks(
            scenario.traces, scenario.scheme, self.cost.share, scenario.drafter, scenario.seed
        )
        sizes = NodeSizes(self.cost, cluster, self.walks)
        growth = Growth(scenario, self.walks) if sizes.partial else None
        self.demand = Demand(sizes, growth, self.walks.tables.group_size)

    def loop(self, kind: type[ClusterLoop]) -> ClusterLoop:
        """Return an idle loop."""
        scenario = self.scenario
        book = RequestBook(scenario.workload, scenario.concurrency, scenario.think_ps)
        return kind(self.cluster, self.demand, self.plan, self.walks, book, self.progress)


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
    builder = _Builder(scenario, cluster, progress)
    if scenario.concurrency is None and not cluster.faults.any:
        front = builder.loop(Front)
        assert isinstance(front, Front)
        front.run()
        _check_rejected(front)
        steps, end = decode_apart(front, scenario, cluster, jobs)
        if front.memory_suffices(builder.plan.kv_pool_bytes, builder.plan.host_capacity_bytes):
            return _collected(builder, front, steps, end)
    loop = builder.loop(ClusterLoop)
    loop.run()
    _check_rejected(loop)
    end = loop.now_ps
    return _collected(builder, loop, [node.log.finish(end) for node in loop.decode], end)


def _check_rejected(loop: ClusterLoop) -> None:
    book = loop.book
    if book.rejected == len(book):
        raise RunFailed(f"no request fits: {book.first_refusal}; {book.advice}")


def _collected(
    builder: _Builder, loop: ClusterLoop, nodes: list[NodeSteps], end: int
) -> ClusterResult:
    """Put together what the nodes and the loop have written down."""
    record, scenario, cluster = loop.record, builder.scenario, builder.cluster
    totals = merge_totals([part for node in nodes for part in node.totals])
    kept = [(number, part) for number, node in enumerate(nodes) for part in node.first]
    first = join_steps([part for _, part in kept])
    node = np.concatenate([np.full(len(part), number, np.int32) for number, part in kept])
    order = np.lexsort((node, first.end_ps))
    first, node = some_steps(first, order), node[order]
    roofline = RooflineParts(
        sum(each.roofline.read_bytes for each in nodes),
        sum(each.roofline.flops for each in nodes),
        sum(each.roofline.moved_bytes for each in nodes),
    )
    bounds = bounds_of(builder.cost, roofline, 0.0, totals.output_tokens, totals.count)
    decoding = totals.rows > 0
    run = RunResult(
        scenario=scenario,
        steps=first,
        requests=loop.book.log(),
        slices=slices(record.requests),
        memory=builder.plan,
        itl_ps=totals.step_ps[decoding],
        itl_count=totals.rows[decoding].astype(np.int64),
        quality=builder.walks.quality,
        bounds=RooflineBounds(
            bounds.step_ms_lower, bounds.output_tokens_per_s_upper * cluster.decode
        ),
        schedule=None,
        notes=(
            *notes_of(scenario, builder.walks, loop.book, first),
            *(
                (f"steps.csv holds the first {len(first):,} of {totals.count:,} steps",)
                if len(first) < totals.count
                else ()
            ),
        ),
        folded=totals,
    )
    # What is sent is held from then on: the loop's own nodes have noted it, decoding or not.
    held = [
        [own.host] if at.log.host is own.host else [at.log.host, own.host]
        for at, own in zip(loop.decode, nodes, strict=True)
    ]
    hosts = Level([changes for each in held for changes in each])
    by_node, resident = [Level(each) for each in held], Level([record.resident])
    fetched = totals.network_bytes
    return ClusterResult(
        cluster=cluster,
        run=run,
        node=node,
        hand_overs=record.requests,
        timeline=_timeline(
            add_series([record.network.values(), *(each.network for each in nodes)]),
            hosts.bins(),
            Level(record.staging).bins(),
            resident.bins(),
        ),
        decode_host=_held(hosts, by_node, end),
        staging=_held(Level(record.staging), [Level([each]) for each in record.staging], end),
        resident_mean=resident.mean(end),
        network_bytes=record.hand_over_bytes + fetched + record.vain_bytes,
        hand_over_bytes=record.hand_over_bytes,
        fetched_bytes=fetched,
        vain_bytes=record.vain_bytes,
        stalled_ps=sum(each.stalled_ps for each in loop.decode),
        prefill_busy_ps=record.prefill_busy_ps,
    )


def _timeline(*parts: npt.NDArray[np.float64]) -> Timeline:
    """Return network, decode hosts, staging and residents, each to the end of the longest."""
    length = max(len(part) for part in parts)
    return Timeline(BIN_PS, *(np.pad(part, (0, length - len(part))) for part in parts))


def _held(total: Level, each: list[Level], end_ps: int) -> Held:
    return Held(total.mean(end_ps), total.peak, max(level.peak for level in each), total.left)
