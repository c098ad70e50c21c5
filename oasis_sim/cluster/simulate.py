"""Simulate a disaggregated scenario: build the nodes, serve the workload, collect the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from oasis_sim.cluster.apart import Front, Jobs, Prompts, decode_apart, one_by_one
from oasis_sim.cluster.collect import Fixed, collect
from oasis_sim.cluster.demand import Demand
from oasis_sim.cluster.growth import Growth
from oasis_sim.cluster.plan import Cluster
from oasis_sim.cluster.recovery import Recovery
from oasis_sim.cluster.result import ClusterResult, HandOvers
from oasis_sim.cluster.serving import ClusterLoop, Progress
from oasis_sim.cluster.sizes import NodeSizes
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.requests import REJECTED, RequestBook
from oasis_sim.engine.result import MemoryPlan, RequestLog
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.simulate import check_scenario
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.errors import RunFailed
from oasis_sim.units import PS_PER_S

FIRST_LOOK_PS = PS_PER_S // 4
LOOKS_APART = 16
"""Simulated time between two looks at a run: the first, and longer by a part of what is over."""


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
    return ClusterRun(scenario, cluster, progress, jobs).result()


@dataclass(frozen=True, eq=False)
class SoFar:
    """Hold what has happened in a run up to now; `inside` bool[N] are the requests under way.

    `decoded_tokens` are those of decode steps.
    """

    cluster: Cluster
    now_ps: int
    decoded_tokens: int
    requests: RequestLog
    hand_overs: HandOvers
    inside: npt.NDArray[np.bool_]

    @property
    def all_there(self) -> bool:
        """Tell whether no request is still to come."""
        gone = (self.requests.finish_ps >= 0) | (self.requests.status == REJECTED)
        return bool((gone | self.inside).all())


class ClusterRun:
    """A run on prefill and decode nodes that may be looked at before it is over.

    Arguments as for `simulate_cluster`; everything raises what it raises.
    """

    def __init__(
        self,
        scenario: Scenario,
        cluster: Cluster,
        progress: Progress | None = None,
        jobs: Jobs = one_by_one,
    ) -> None:
        """Check the scenario; nothing happens yet."""
        self._fixed = _fixed(scenario, cluster)
        self._progress, self._jobs = progress, jobs
        self._loop: ClusterLoop | None = None
        self._result: ClusterResult | None = None

    def result(self) -> ClusterResult:
        """Go on to the end and return everything that happened."""
        for _ in self.looks():
            pass
        assert self._result is not None
        return self._result

    def looks(self) -> Iterator[SoFar]:
        """Go on, and yield now and then what has happened so far, until the run is over.

        Who stops asking may go on later. A run whose nodes can be simulated apart is not stopped.
        """
        if self._loop is None and self._result is None:
            self._result = self._apart()
        if self._result is not None:
            return
        if self._loop is None:
            self._loop = ClusterLoop(*_parts(self._fixed), self._progress)
            self._loop.start()
            Recovery(self._loop).start()
        loop, pause = self._loop, FIRST_LOOK_PS + self._loop.now_ps
        while not loop.run(pause):
            yield self._so_far(loop)
            pause += FIRST_LOOK_PS + pause // LOOKS_APART
        _check_any(loop)
        end = loop.now_ps
        self._result = collect(
            self._fixed, loop, [node.log.finish(end) for node in loop.decode], end
        )

    def _so_far(self, loop: ClusterLoop) -> SoFar:
        inside = np.zeros(len(loop.book), dtype=bool)
        inside[list(loop.visits)] = True
        cluster, book, moves = self._fixed.cluster, loop.book, loop.record.requests
        return SoFar(cluster, loop.now_ps, book.generated_total, book.log(), moves, inside)

    def _apart(self) -> ClusterResult | None:
        """Simulate prefill first and then every node by itself; None where that does not hold."""
        fixed = self._fixed
        scenario, cluster = fixed.scenario, fixed.cluster
        if scenario.concurrency is not None or cluster.faults.any:
            return None
        front = Front(*_parts(fixed), None)
        front.start()
        front.run()
        _check_any(front)
        found = decode_apart(front, scenario, cluster, fixed.plan, self._jobs, self._progress)
        return None if found is None else collect(fixed, front, *found)


def prefill_alone(scenario: Scenario, cluster: Cluster) -> RequestLog:
    """Return the requests with the end of their prefill as first token, decode left out.

    Nodes have memory without bounds, so no run of the cluster prefills sooner, however many its
    decode nodes. Only for requests that arrive at times of their own, and without faults. Raises
    as `simulate_cluster`.
    """
    prompts = Prompts(*_parts(_fixed(scenario, cluster)), None)
    prompts.start()
    prompts.run()
    _check_any(prompts)
    return replace(prompts.book.log(), first_token_ps=prompts.record.requests.prefill_end_ps)


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


def _check_any(loop: ClusterLoop) -> None:
    """Raise RunFailed when no request of a run that is over was served."""
    book = loop.book
    if book.rejected == len(book):
        raise RunFailed(f"no request fits: {book.first_refusal}; {book.advice}")
