"""Put together what the nodes of a disaggregated run have written down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.nodelog import NodeSteps
from oasis_sim.cluster.picture import slices
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.result import ClusterResult, Held, Timeline, join_steps, some_steps
from oasis_sim.cluster.series import BIN_PS, Level, add_series
from oasis_sim.cluster.serving import ClusterLoop
from oasis_sim.engine.bounds import RooflineParts, bounds_of
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.result import MemoryPlan, RooflineBounds, RunResult
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import notes_of
from oasis_sim.engine.totals import StepTotals, merge_totals
from oasis_sim.engine.walks import Walks


@dataclass(frozen=True, eq=False)
class Fixed:
    """Hold what a run was made from."""

    scenario: Scenario
    cluster: Cluster
    cost: CostModel
    plan: MemoryPlan
    walks: Walks


def collect(fixed: Fixed, loop: ClusterLoop, nodes: list[NodeSteps], end: int) -> ClusterResult:
    """Return the result; `nodes` are the steps of the decode nodes, `end` the last request's."""
    record = loop.record
    loop.watch.holdups.change(end, None)
    run, node = _run_of(fixed, loop, nodes)
    # What is sent is held from then on: the loop's own nodes have noted it, decoding or not.
    held = [
        [own.host] if at.log.host is own.host else [at.log.host, own.host]
        for at, own in zip(loop.decode, nodes, strict=True)
    ]
    hosts = Level([changes for each in held for changes in each])
    staging, resident = Level(record.staging), Level([record.resident])
    fetched = run.totals.network_bytes
    return ClusterResult(
        cluster=fixed.cluster,
        run=run,
        node=node,
        hand_overs=record.requests,
        timeline=_timeline(
            add_series([record.network.values(), *(each.network for each in nodes)]),
            hosts.bins(),
            staging.bins(),
            resident.bins(),
        ),
        decode_host=_held(hosts, [Level(each) for each in held], end),
        staging=_held(staging, [Level([each]) for each in record.staging], end),
        resident_mean=resident.mean(end),
        network_bytes=record.hand_over_bytes + fetched + record.vain_bytes,
        hand_over_bytes=record.hand_over_bytes,
        fetched_bytes=fetched,
        vain_bytes=record.vain_bytes,
        stalled_ps=sum(each.stalled_ps for each in loop.decode),
        prefill_busy_ps=record.prefill_busy_ps,
    )


def _run_of(
    fixed: Fixed, loop: ClusterLoop, nodes: list[NodeSteps]
) -> tuple[RunResult, npt.NDArray[np.int32]]:
    """Return the run of all decode nodes, and whose each of its kept steps is."""
    totals = merge_totals([part for node in nodes for part in node.totals])
    kept = [(number, part) for number, node in enumerate(nodes) for part in node.first]
    first = join_steps([part for _, part in kept])
    owner = np.concatenate([np.full(len(part), number, np.int32) for number, part in kept])
    order = np.lexsort((owner, first.end_ps))
    first = some_steps(first, order)
    notes = notes_of(fixed.scenario, fixed.walks, loop.book, first)
    if len(first) < totals.count:
        notes += (f"steps.csv holds the first {len(first):,} of {totals.count:,} steps",)
    decoding = totals.rows > 0
    run = RunResult(
        scenario=fixed.scenario,
        steps=first,
        requests=loop.book.log(),
        slices=slices(loop.record.requests),
        memory=fixed.plan,
        itl_ps=totals.step_ps[decoding],
        itl_count=totals.rows[decoding].astype(np.int64),
        quality=fixed.walks.quality,
        bounds=_bounds(fixed, nodes, totals),
        schedule=None,
        notes=notes,
        held_ps=loop.watch.holdups.time_ps,
        folded=totals,
    )
    return run, owner[order]


def _bounds(fixed: Fixed, nodes: list[NodeSteps], totals: StepTotals) -> RooflineBounds:
    """Return the mean step of one node at best, and what all nodes give at that pace."""
    parts = RooflineParts(
        sum(each.roofline.read_bytes for each in nodes),
        sum(each.roofline.flops for each in nodes),
        sum(each.roofline.moved_bytes for each in nodes),
    )
    one = bounds_of(fixed.cost, parts, 0.0, totals.output_tokens, totals.count)
    return RooflineBounds(one.step_ms_lower, one.output_tokens_per_s_upper * fixed.cluster.decode)


def _timeline(*parts: npt.NDArray[np.float64]) -> Timeline:
    """Return network, decode hosts, staging and residents, each to the end of the longest."""
    length = max(len(part) for part in parts)
    return Timeline(BIN_PS, *(np.pad(part, (0, length - len(part))) for part in parts))


def _held(total: Level, each: list[Level], end_ps: int) -> Held:
    return Held(total.mean(end_ps), total.peak, max(level.peak for level in each), total.left)
