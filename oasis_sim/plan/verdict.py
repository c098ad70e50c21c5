"""What a search asks of prefill and decode nodes, simulated no further than the answers need.

A search asks whether targets are met, and if not, what is lacking. Where a queue grows, the answer
is certain long before the last request has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from oasis_sim.cluster import ClusterResult, ClusterRun, SoFar
from oasis_sim.engine.requests import REJECTED
from oasis_sim.engine.result import RequestLog
from oasis_sim.errors import RunFailed
from oasis_sim.plan.probe import Probe, room_share, spares_prefill, waiting_share
from oasis_sim.plan.slo import Reading, Target, read_requests
from oasis_sim.units import PS_PER_S

ROUNDING = 1e-9
"""Sums of floating point are right to a smaller share than this."""


class Verdict:
    """Answer questions about one number of nodes of each kind.

    `begin` makes the run and `probe` says what came of it. `told` is called once, when the first
    answer is there. With `may_fail` (faults) a run that comes to no end is not enough; otherwise
    it raises RunFailed.
    """

    def __init__(
        self,
        begin: Callable[[], ClusterRun],
        targets: Sequence[Target],
        probe: Callable[[ClusterResult], Probe],
        told: Callable[[], None],
        *,
        may_fail: bool,
    ) -> None:
        self._begin, self._targets, self._probe = begin, targets, probe
        self._told, self._may_fail = told, may_fail
        self._run: ClusterRun | None = None
        self._known = Probe((), 0.0, 0, 0.0, {}, spare_prefill=True)
        self._is_over = False

    @property
    def met(self) -> bool:
        """Tell whether every target is met by nodes that keep up."""
        return self._known_when(lambda known: not known.met).met

    @property
    def lacks_decode_nodes(self) -> bool:
        """Tell whether the pace of decode, or room for it, is missed."""
        return self._known_when(lambda known: known.lacks_decode_nodes).lacks_decode_nodes

    @property
    def spare_prefill(self) -> bool:
        """Tell whether a prefill node was never chosen."""
        return self._known_when(lambda known: not known.spare_prefill).spare_prefill

    @property
    def tokens_per_s(self) -> float:
        """Return what decode nodes gave in the time simulated so far."""
        return self._known.tokens_per_s

    def whole(self) -> Probe:
        """Return what the whole simulation says."""
        return self._known_when(lambda _: False)

    def _known_when(self, decided: Callable[[Probe], bool]) -> Probe:
        """Go on until what is known decides, or to the end; return what is known then."""
        if self._is_over or decided(self._known):
            return self._known
        try:
            self._go_on(decided)
        except RunFailed as error:
            if not self._may_fail:
                raise
            self._known = Probe((), 0.0, 0, 0.0, {}, failure=str(error))
            self._run, self._is_over = None, True
        return self._known

    def _go_on(self, decided: Callable[[Probe], bool]) -> None:
        first = self._run is None
        run = self._run = self._run or self._begin()
        for so_far in run.looks():
            self._known = at_least(so_far, self._targets)
            if decided(self._known):
                break
        else:
            self._known = self._probe(run.result())
            self._run, self._is_over = None, True
        if first:
            self._told()


def at_least(so_far: SoFar, targets: Sequence[Target]) -> Probe:
    """Return what is certain of a run that goes on: no reading ends lower, no share either.

    All that is under way is taken to end now, and what has not come yet to take no time. Of
    inter-token latencies nothing is certain; nor are shares before the last arrival, and with
    faults that of requests that wait for room.
    """
    requests = _ended_now(so_far)
    readings = tuple(_least(requests, each) for each in targets)
    refused = int(np.count_nonzero(requests.status == REJECTED))
    waiting = room = 0.0
    if so_far.all_there and so_far.now_ps > int(requests.arrival_ps.max()):
        waiting = waiting_share(requests)
        if not so_far.cluster.faults.any:
            room = room_share(requests, so_far.hand_overs)
    spare = spares_prefill(so_far.hand_overs, so_far.cluster)
    given = so_far.decoded_tokens * PS_PER_S / max(so_far.now_ps, 1)
    return Probe(readings, waiting + room, refused, 0.0, {}, room, spare, tokens_per_s=given)


def _ended_now(so_far: SoFar) -> RequestLog:
    """Return the requests as if all that is under way ended now, and the others at arrival."""
    requests = so_far.requests
    now = np.maximum(requests.arrival_ps, np.where(so_far.inside, so_far.now_ps, 0))
    served = requests.status != REJECTED

    def at(event_ps: np.ndarray) -> np.ndarray:
        return np.where(served & (event_ps < 0), now, event_ps)

    return replace(
        requests,
        generated_tokens=np.where(served, requests.output_tokens, 0),
        first_token_ps=at(requests.first_token_ps),
        finish_ps=at(requests.finish_ps),
    )


def _least(requests: RequestLog, target: Target) -> Reading:
    """Return a reading that no end of the run goes below."""
    if target.metric == "itl":
        return Reading(target, 0.0)
    reading = read_requests(requests, target)
    if reading.value_ms is None:
        return reading
    return Reading(target, reading.value_ms * (1 - ROUNDING))
