"""One thing changed in a scenario: what plans ask when they say what an answer hangs on."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from oasis_sim.engine.scenario import Scenario
from oasis_sim.hardware import Link
from oasis_sim.hardware.load import on_link
from oasis_sim.hardware.roofline import roofline_costs
from oasis_sim.residency.predict import draft_order
from oasis_sim.trace import AttentionTrace
from oasis_sim.trace.trace import NO_BLOCK
from oasis_sim.workload.workload import LARGEST_TOKENS

POINTS_WORSE = 5
"""Points of agreement with the true selection that a worse prediction loses, in whole blocks."""

_STREAM = 5
"""Number of the random stream that says which predictions go wrong."""


def with_rate(scenario: Scenario, factor: Fraction) -> Scenario:
    """Return the scenario with the same requests, arriving `factor` times as fast."""
    arrival = scenario.workload.arrival_ps * factor.denominator // factor.numerator
    return replace(scenario, workload=replace(scenario.workload, arrival_ps=arrival))


def with_long_contexts(scenario: Scenario) -> Scenario:
    """Return the scenario with prompts twice as long."""
    prompt = np.minimum(2 * scenario.workload.prompt_tokens, LARGEST_TOKENS)
    return replace(scenario, workload=replace(scenario.workload, prompt_tokens=prompt))


def with_half_the_host(scenario: Scenario) -> Scenario:
    """Return the scenario with half the host memory for KV."""
    whole = scenario.host_bytes
    whole = scenario.profile.host.kv_bytes if whole is None else whole
    return replace(scenario, host_bytes=whole // 2)


def with_slow_link(scenario: Scenario) -> Scenario:
    """Return the scenario with half the bandwidth to host memory, in both directions."""
    profile, link = scenario.profile, scenario.profile.pcie
    half = Link(link.bytes_per_s / 2, link.usable_bytes_per_s / 2, link.latency_ps)
    engines = {
        name: roofline_costs(half) if name == "roofline" else on_link(costs, 0.5)
        for name, costs in profile.engines.items()
    }
    return replace(scenario, profile=replace(profile, pcie=half, engines=engines))


def with_worse_prediction(scenario: Scenario) -> Scenario:
    """Return the scenario with a drafter that names fewer of the blocks that turn out right."""
    chosen, drafter = scenario.scheme.chosen_blocks, scenario.drafter
    traces = tuple(worse_trace(trace, drafter, chosen) for trace in scenario.traces)
    return replace(scenario, traces=traces)


@lru_cache(maxsize=8)
def worse_trace(trace: AttentionTrace, drafter: str | None, chosen: int) -> AttentionTrace:
    """Return a trace whose drafter agrees with the true selection five points less.

    In each step, layer and head, that share of the `chosen` blocks is taken from those that the
    draft had right and given to blocks that it ranks lower and that are wrong. Which ones is drawn
    anew in each step, so wrong blocks are fetched anew too: the most traffic that so many points
    can cause.
    """
    name = drafter if drafter is not None else next(iter(trace.pred_order), None)
    orders = draft_order(trace, drafter)
    rows = orders.reshape(-1, orders.shape[-1])
    # The draft of a step is for the next one; the last has none, and is never used.
    later = np.concatenate([trace.use_order[1:], trace.use_order[-1:]])
    truth = later.reshape(rows.shape)
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM])))
    swapped = _swap(rows, truth, chosen, stream).reshape(orders.shape)
    assert name is not None
    return replace(trace, pred_order={**trace.pred_order, name: swapped})


def _swap(
    rows: NDArray[np.uint16],
    truth: NDArray[np.uint16],
    chosen: int,
    stream: np.random.Generator,
) -> NDArray[np.uint16]:
    """Exchange right blocks among the first `chosen` of each row for wrong ones ranked below."""
    blocks = 1 + int(max(rows[rows != NO_BLOCK].max(), truth[truth != NO_BLOCK].max()))
    is_true = np.zeros((len(rows), blocks + 1), dtype=bool)
    best = np.minimum(truth[:, :chosen].astype(np.int64), blocks)
    np.put_along_axis(is_true, best, values=True, axis=1)
    is_true[:, blocks] = False
    right = np.take_along_axis(is_true, np.minimum(rows.astype(np.int64), blocks), axis=1)
    rank = np.arange(rows.shape[1])
    can_leave = right & (rank < chosen)
    can_enter = ~right & (rank >= chosen) & (rows != NO_BLOCK)
    wanted = round(chosen * POINTS_WORSE / 100)
    number = np.minimum(np.minimum(can_leave.sum(axis=1), can_enter.sum(axis=1)), wanted)
    draws = stream.random(rows.shape)
    leave = np.argsort(np.where(can_leave, draws, 2.0), axis=1, kind="stable")[:, :wanted]
    enter = np.argsort(np.where(can_enter, draws, 2.0), axis=1, kind="stable")[:, :wanted]
    taken = np.arange(wanted) < number[:, None]
    swapped = rows.copy()
    row = np.broadcast_to(np.arange(len(rows))[:, None], taken.shape)[taken]
    swapped[row, leave[taken]] = rows[row, enter[taken]]
    swapped[row, enter[taken]] = rows[row, leave[taken]]
    return swapped
