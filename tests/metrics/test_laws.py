"""Conservation laws and the raw tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from oasis_sim.engine.result import RunResult
from oasis_sim.errors import RunFailed
from oasis_sim.metrics import check_conservation, requests_table, steps_table
from tests.factories import GB, STEP_PS, tiny_requests, tiny_result, tiny_steps

Break = Callable[[RunResult], RunResult]


def test_a_sound_run_passes() -> None:
    """The factory's run obeys every law."""
    check_conservation(tiny_result())


def with_steps(**changes: np.ndarray) -> Break:
    """Return a change of a run's steps."""
    return lambda result: replace(result, steps=replace(result.steps, **changes))


def with_requests(**changes: np.ndarray) -> Break:
    """Return a change of a run's requests."""
    return lambda result: replace(result, requests=replace(result.requests, **changes))


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (with_steps(end_ps=np.array([1, 2, 3, 4]) * STEP_PS + 1), "steps overlap"),
        (with_steps(end_ps=np.array([-1, 2, 3, 4]) * STEP_PS), "ends before it starts"),
        (with_steps(output_tokens=np.array([2, 2, 2, 1])), "tokens of steps and of requests"),
        (with_steps(deferred_blocks=np.zeros(4, dtype=np.int64)), "not admitted or deferred"),
        (with_steps(h2d_bytes=np.array([0, 0, -1, 0])), "bytes are negative"),
        (with_steps(hbm_kv_bytes=np.full(4, 55 * GB)), "HBM holds more"),
        (with_steps(host_kv_bytes=np.full(4, 201 * GB)), "host memory holds more"),
        (with_requests(output_tokens=np.array([5, 4])), "lacks tokens"),
        (with_requests(output_tokens=np.array([3, 4])), "too many tokens"),
        (with_requests(arrival_ps=np.array([2 * STEP_PS, 0])), "precedes its cause"),
    ],
)
def test_each_broken_law_is_named(broken: Break, law: str) -> None:
    """A run that breaks one law is refused, and the message says which."""
    with pytest.raises(RunFailed, match=law):
        check_conservation(broken(tiny_result()))


def test_steps_table_holds_what_was_simulated() -> None:
    """Integers are not rounded, a missing proxy is an empty cell."""
    table = steps_table(tiny_steps())
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows()]
    assert [row["end_ps"] for row in rows] == [STEP_PS * n for n in (1, 2, 3, 4)]
    assert rows[0]["topk_agreement"] is None
    assert rows[1]["topk_agreement"] == 0.9
    assert rows[0]["bound"] == "prefill"
    assert all(isinstance(row["h2d_bytes"], int) for row in rows)


def test_requests_table_leaves_empty_what_never_happened() -> None:
    """A request that was not finished has no finish and no TPOT."""
    finish = np.array([-1, 4 * STEP_PS])
    table = requests_table(tiny_requests(finish_ps=finish))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows()]
    assert (rows[0]["finish_ps"], rows[0]["tpot_ps"], rows[0]["e2e_ps"]) == (None, None, None)
    assert (rows[1]["ttft_ps"], rows[1]["tpot_ps"]) == (STEP_PS, STEP_PS)


def test_a_single_token_has_no_time_per_token() -> None:
    """TPOT needs a second token; TTFT does not."""
    one = np.array([1, 4])
    table = requests_table(tiny_requests(generated_tokens=one, output_tokens=one))
    assert [row[table.header.index("tpot_ps")] for row in table.rows()] == [None, STEP_PS]
