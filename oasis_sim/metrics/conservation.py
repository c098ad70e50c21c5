"""Laws that every run obeys, whatever the engine: checked before anything is reported."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine.result import STATUS, RunResult
from oasis_sim.errors import RunFailed


def check_conservation(result: RunResult) -> None:
    """Raise RunFailed when a run breaks a law: clock, requests, tokens, blocks, bytes per tier.

    Such a failure is a defect of the simulator, never of the input.
    """
    broken = [text for text, holds in _laws(result) if not holds]
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
        ("steps overlap", bool(np.all(steps.start_ps[1:] >= steps.end_ps[:-1]))),
        (
            "tokens of steps and of requests differ",
            int(steps.output_tokens.sum()) == int(requests.generated_tokens.sum()),
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
            bool(np.all(steps.hbm_kv_bytes <= memory.kv_pool_bytes)),
        ),
        (
            "host memory holds more than it has room for",
            bool(np.all(steps.host_kv_bytes <= memory.host_capacity_bytes)),
        ),
    ]
