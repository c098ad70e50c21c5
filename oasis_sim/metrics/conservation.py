"""Laws that every run obeys, whatever the engine: checked before anything is reported."""

from __future__ import annotations

import itertools
import math

import numpy as np

from oasis_sim.cluster.result import ClusterResult
from oasis_sim.engine.result import STATUS, RunResult
from oasis_sim.errors import RunFailed


def check_conservation(result: RunResult) -> None:
    """Raise RunFailed when a run breaks a law: clock, requests, tokens, blocks, bytes per tier.

    Such a failure is a defect of the simulator, never of the input.
    """
    steps = result.steps
    overlap = ("steps overlap", bool(np.all(steps.start_ps[1:] >= steps.end_ps[:-1])))
    _demand([*_laws(result), overlap])


def check_cluster(result: ClusterResult) -> None:
    """Raise RunFailed when a disaggregated run breaks a law, as `check_conservation` does.

    Beside those of every run: steps of one node do not overlap, requests go from node to node
    in order, and all bytes on the network are a hand-over, a fetch or in vain.
    """
    steps, moves = result.run.steps, result.hand_overs
    order = np.lexsort((steps.start_ps, result.node))
    same = np.diff(result.node[order]) == 0
    gaps = steps.start_ps[order][1:] - steps.end_ps[order][:-1]
    done = result.run.requests.status == STATUS.index("completed")
    arrived = done & (moves.ready_ps >= 0)
    path = (moves.prefill_start_ps, moves.prefill_end_ps, moves.sent_ps, moves.ready_ps)
    _demand(
        [
            *_laws(result.run),
            ("steps of a node overlap", bool(np.all(gaps[same] >= 0))),
            (
                "a request is somewhere before it has left another place",
                all(bool(np.all(b[arrived] >= a[arrived])) for a, b in itertools.pairwise(path)),
            ),
            (
                "bytes of steps and of requests differ",
                result.run.totals.network_bytes == int(moves.fetched_bytes.sum()),
            ),
            (
                "bytes of hand-overs and of requests differ",
                result.hand_over_bytes >= int((moves.union_bytes + moves.gpu_bytes)[arrived].sum()),
            ),
            (
                "bytes over time and in all differ",
                math.isclose(result.timeline.network_bytes.sum(), result.network_bytes),
            ),
            (
                "a prefill node holds more than it has room for",
                result.staging.node_peak <= result.cluster.remote_bytes,
            ),
            (
                "something is held when all is over",
                result.decode_host.left == result.staging.left == 0,
            ),
        ]
    )


def _demand(laws: list[tuple[str, bool]]) -> None:
    broken = [text for text, holds in laws if not holds]
    if broken:
        raise RunFailed(
            f"the simulation broke its own laws ({'; '.join(broken)}); "
            "nothing is reported from it: please report this with the scenario"
        )


def _laws(result: RunResult) -> list[tuple[str, bool]]:
    steps, requests, memory = result.steps, result.requests, result.memory
    done = requests.status == STATUS.index("completed")
    moved = (steps.h2d_bytes, steps.d2h_bytes, steps.network_bytes)
    times = (requests.admitted_ps, requests.first_token_ps, requests.finish_ps)
    return [
        ("a step ends before it starts", bool(np.all(steps.end_ps >= steps.start_ps))),
        (
            "tokens of steps and of requests differ",
            result.totals.output_tokens == int(requests.generated_tokens.sum()),
        ),
        (
            "a completed request lacks tokens",
            bool(np.all(requests.generated_tokens[done] == requests.output_tokens[done])),
        ),
        (
            "a request has too many tokens",
            bool(np.all(requests.generated_tokens <= requests.output_tokens)),
        ),
        (
            "an event precedes its cause",
            all(bool(np.all((t < 0) | (t >= requests.arrival_ps))) for t in times),
        ),
        (
            "needed blocks are not admitted or deferred",
            bool(np.all(steps.admitted_blocks + steps.deferred_blocks == steps.needed_blocks)),
        ),
        ("bytes are negative", all(bool(np.all(values >= 0)) for values in moved)),
        (
            "HBM holds more KV than it has room for",
            result.totals.peak_hbm_bytes <= memory.kv_pool_bytes,
        ),
        (
            "host memory holds more than it has room for",
            result.totals.peak_host_bytes <= memory.host_capacity_bytes,
        ),
    ]
