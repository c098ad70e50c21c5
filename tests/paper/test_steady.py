"""Which part of a closed loop counts as steady."""

from __future__ import annotations

import numpy as np
import pytest

from oasis_sim.errors import RunFailed
from oasis_sim.paper import fig11
from oasis_sim.paper.steady import full_steps, steady_window
from oasis_sim.units import PS_PER_MS
from tests.factories import STEP_PS, tiny_requests, tiny_steps


def waves(count: int, width: int, life: int, gap: int = 1) -> dict[str, np.ndarray]:
    """Return admissions and ends of `count` requests, `width` at a time, `gap` apart."""
    index = np.arange(count)
    admitted = (index // width) * life + (index % width) * gap
    return {"admitted_ps": admitted, "finish_ps": admitted + life}


def test_window_spans_whole_waves() -> None:
    """Three waves of two requests: from the end of the first wave to the end of the last."""
    assert steady_window(tiny_requests(**waves(6, 2, 10)), concurrency=2) == (10, 30)


def test_window_ends_when_the_loop_is_no_longer_full() -> None:
    """Memory for two of four: nobody waits after the last admission, so the last wave is out."""
    assert steady_window(tiny_requests(**waves(8, 2, 10)), concurrency=4) == (10, 30)


def test_requests_that_never_ended_are_left_out() -> None:
    """A run that was cut short is judged by the requests that ended."""
    times = waves(8, 2, 10)
    times["finish_ps"][6:] = -1
    assert steady_window(tiny_requests(**times), concurrency=2) == (10, 30)


@pytest.mark.parametrize(("count", "concurrency"), [(2, 2), (2, 8), (3, 3)])
def test_too_short_a_loop_is_refused(count: int, concurrency: int) -> None:
    """Without a request after the first wave there is no steady state."""
    with pytest.raises(RunFailed, match="steady"):
        steady_window(tiny_requests(**waves(count, concurrency, 10)), concurrency)


def test_full_steps_leave_out_prefill_and_partial_batches() -> None:
    """Of four steps the first prefills and the last decodes one request only."""
    rows = np.array([0, 2, 2, 1], dtype=np.int32)
    steps = tiny_steps(sparse_rows=rows)
    assert full_steps(steps, 2).tolist() == [False, True, True, False]


def test_full_steps_of_a_dense_scheme() -> None:
    """Without offload the dense rows count."""
    rows = np.array([0, 2, 2, 1], dtype=np.int32)
    steps = tiny_steps(sparse_rows=np.zeros_like(rows), dense_rows=rows)
    steps.prefill_tokens[0] = 100
    assert full_steps(steps, 2, sparse=False).tolist() == [False, True, True, False]


def test_a_batch_that_never_decodes_together_is_refused() -> None:
    """The message says how many did."""
    with pytest.raises(RunFailed, match="at most 2 of 128 requests"):
        full_steps(tiny_steps(), 128)


def test_rate_times_time_per_token_is_the_batch() -> None:
    """Two requests at a time, 60 ms a step, five tokens each: Little's law by hand."""
    life = 5 * STEP_PS
    times = waves(6, 2, life, gap=0)
    first = times["admitted_ps"] + STEP_PS
    requests = tiny_requests(**times, first_token_ps=first, output_tokens=np.full(6, 5))
    found = fig11.metrics(tiny_steps(15), requests, concurrency=2)
    assert found["tpot_ms"] == pytest.approx(STEP_PS / PS_PER_MS)
    assert found["output_tokens_per_s"] == pytest.approx(2 / 0.060)
    assert found["running_batch"] == pytest.approx(2.0)
