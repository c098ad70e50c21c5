"""The serving loop as a queue: what queueing theory says of it, under every scheme."""

from __future__ import annotations

import numpy as np
import pytest

from oasis_sim.engine import simulate
from oasis_sim.scheme import scheme_names
from oasis_sim.units import PS_PER_MS
from oasis_sim.workload import Workload, closed_loop
from tests.engine.scenarios import scenario

SCHEMES = scheme_names()
THINK_PS = 7 * PS_PER_MS


def poisson(requests: int, gap_ps: int, seed: int = 0) -> Workload:
    """Return equal requests that arrive at random, `gap_ps` apart on average."""
    gaps = np.random.default_rng(seed).exponential(gap_ps, requests).astype(np.int64)
    whole = np.ones(requests, dtype=np.int64)
    return Workload("poisson", "csv", np.cumsum(gaps), 600 * whole, 4 * whole)


def service_ps(scheme: str) -> int:
    """Return how long one request of `poisson` takes when it is alone."""
    requests = simulate(scenario(scheme, workload=poisson(1, 1), concurrency=1)).requests
    return int(requests.finish_ps[0] - requests.admitted_ps[0])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_at_a_time_is_lindleys_recursion(scheme: str) -> None:
    """Each request starts when it is due or when the one before has ended, whichever is later."""
    workload = poisson(40, int(1.5 * service_ps(scheme)))
    requests = simulate(scenario(scheme, workload=workload, concurrency=1)).requests
    ended = np.concatenate([[0], requests.finish_ps[:-1]])
    assert np.array_equal(np.maximum(workload.arrival_ps, ended), requests.admitted_ps)
    assert 0 < (requests.admitted_ps > workload.arrival_ps).sum() < 40


def test_mean_wait_is_that_of_pollaczek_and_khinchine() -> None:
    """One server, Poisson arrivals: mean wait = rate x E[S^2] / (2 (1 - utilisation))."""
    count, gap_ps = 2000, 2 * service_ps("dense")
    workload = poisson(count, gap_ps)
    requests = simulate(scenario("dense", workload=workload, concurrency=1)).requests
    service = (requests.finish_ps - requests.admitted_ps).astype(np.float64)
    rate = 1.0 / gap_ps
    expected = rate * (service**2).mean() / (2 * (1 - rate * service.mean()))
    wait = (requests.admitted_ps - workload.arrival_ps).mean()
    assert wait == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_closed_loop_with_think_time(scheme: str) -> None:
    """Every request but the first ones comes a think time after another has ended.

    Hence the interactive response time law, N = X (R + Z), over the life of every client.
    """
    places = 3
    case = scenario(scheme, workload=closed_loop(9, 600, 4), concurrency=places, think_ps=THINK_PS)
    requests = simulate(case).requests
    assert requests.arrival_ps[:places].tolist() == [0] * places
    sent = np.sort(requests.arrival_ps[places:])
    assert np.array_equal(np.sort(requests.finish_ps)[: len(sent)] + THINK_PS, sent)
    clients = (requests.finish_ps - requests.arrival_ps + THINK_PS).sum()
    lives = np.sort(requests.finish_ps)[-places:].sum() + places * THINK_PS
    assert clients == lives
