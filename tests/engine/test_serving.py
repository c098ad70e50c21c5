"""The serving loop: nothing is lost, nothing is invented, memory is hard."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oasis_sim.engine import RunResult, simulate
from oasis_sim.engine.result import STATUS
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.hardware import HardwareProfile
from oasis_sim.scheme import scheme_names
from oasis_sim.workload import Workload, closed_loop
from tests.engine.scenarios import TINY, card, scenario
from tests.strategies import workloads

SCHEMES = scheme_names()
WEIGHTS = TINY.weight_bytes
TOKEN = TINY.kv_bytes_per_token


def check_run(result: RunResult) -> None:
    """Check what must hold in every run."""
    steps, requests = result.steps, result.requests
    assert np.all(steps.end_ps >= steps.start_ps)
    assert np.all(steps.start_ps[1:] >= steps.end_ps[:-1])
    assert int(requests.generated_tokens.sum()) == int(steps.output_tokens.sum())
    scheme = result.scenario.scheme
    # Values alone where keys stay in HBM as factors; half of the bytes in 8 bits.
    tensors, element = 1 if scheme.key_rank else 2, scheme.host_bytes_per_element or 2
    block = tensors * TINY.head_dim * element * 16
    assert np.array_equal(steps.h2d_bytes, steps.admitted_blocks * block)
    assert np.array_equal(steps.deferred_blocks, steps.needed_blocks - steps.admitted_blocks)
    assert steps.deferred_blocks.min() >= 0
    assert steps.hbm_kv_bytes.max() <= result.memory.kv_pool_bytes
    done = requests.status == STATUS.index("completed")
    assert np.all(requests.finish_ps[done] >= requests.first_token_ps[done])
    assert np.all(requests.first_token_ps[done] > requests.admitted_ps[done])
    assert np.all(requests.admitted_ps[done] >= requests.arrival_ps[done])
    assert np.array_equal(requests.generated_tokens[done], requests.output_tokens[done])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("engine", ["roofline", "vllm"])
def test_every_request_completes_and_no_run_beats_its_roofline(scheme: str, engine: str) -> None:
    """Each scheme serves all requests, conserves tokens and bytes, and respects the bounds."""
    result = simulate(scenario(scheme, engine))
    check_run(result)
    assert np.all(result.requests.status == STATUS.index("completed"))
    length_ms = (result.steps.end_ps[-1] - result.steps.start_ps[0]) / 1e9 / len(result.steps)
    assert length_ms >= result.bounds.step_ms_lower * (1 - 1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_littles_law_holds_exactly(scheme: str) -> None:
    """Row-time over all steps equals the time that requests spend between first and last token."""
    result = simulate(scenario(scheme))
    steps, requests = result.steps, result.requests
    rows = (steps.sparse_rows + steps.dense_rows).astype(np.int64)
    assert int((requests.finish_ps - requests.first_token_ps).sum()) == int(
        (rows * (steps.end_ps - steps.start_ps)).sum()
    )


def test_the_same_scenario_gives_the_same_numbers() -> None:
    """Two runs of one scenario agree in every array."""
    first, second = (simulate(scenario()) for _ in range(2))
    for log in ("steps", "requests"):
        for field in dataclasses.fields(getattr(first, log)):
            one, two = (getattr(getattr(run, log), field.name) for run in (first, second))
            assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), field.name
    assert first.slices == second.slices


def test_concurrency_limits_the_batch() -> None:
    """No step has more rows than requests may be in the system, and late ones are sent late."""
    result = simulate(scenario(concurrency=2))
    assert int((result.steps.sparse_rows + result.steps.dense_rows).max()) == 2
    assert np.all(result.requests.arrival_ps[2:] > 0)


def test_memory_limits_the_batch() -> None:
    """With room for two dense requests, two run although more may."""
    room = WEIGHTS + 2 * TOKEN * (1024 + 40 + 16) + TOKEN
    result = simulate(scenario("dense", profile=card(room), concurrency=6))
    check_run(result)
    assert int((result.steps.sparse_rows + result.steps.dense_rows).max()) == 2


def test_preempted_requests_are_recomputed() -> None:
    """When growth exhausts the pool the newest request yields, and still completes."""
    room = WEIGHTS + 2 * TOKEN * (1024 + 16) + 20 * TOKEN
    result = simulate(scenario("dense", profile=card(room), workload=closed_loop(4, 1024, 200)))
    check_run(result)
    assert int(result.requests.preemptions.sum()) > 0
    assert np.all(result.requests.status == STATUS.index("completed"))


def test_a_request_that_never_fits_is_refused_with_the_arithmetic() -> None:
    """One giant among small requests is rejected; alone it fails the run."""
    room = card(WEIGHTS + TOKEN * 3000)
    mixed = Workload("mixed", "csv", np.zeros(3), np.array([1024, 9000, 1024]), np.full(3, 8))
    result = simulate(scenario("dense", profile=room, workload=mixed))
    check_run(result)
    assert [0, 1, 0] == (result.requests.status == STATUS.index("rejected")).astype(int).tolist()
    with pytest.raises(RunFailed, match=r"9,000 prompt.*of HBM where the KV pool has"):
        simulate(scenario("dense", profile=room, workload=closed_loop(1, 9000, 8)))


def test_host_memory_is_hard() -> None:
    """An offloading scheme is refused when the host cannot hold a request's KV.

    The message names the memory that is short and what helps there, not HBM, of which is plenty.
    """
    with pytest.raises(RunFailed) as refusal:
        simulate(scenario("oasis", profile=card(8 * 10**9, host_bytes=TOKEN * 500)))
    assert str(refusal.value) == (
        "no request fits: request 0 (1,024 prompt + 40 output tokens) needs 2.08 MiB of host "
        "memory where KV may take 1,000 KiB; shorten the context or give KV more host memory "
        "(--host-memory)"
    )


def test_a_lack_of_hbm_is_told_without_host_memory() -> None:
    """A dense request that is too long gets the advice to offload; host memory is not at stake."""
    with pytest.raises(RunFailed) as refusal:
        simulate(scenario("dense", profile=card(WEIGHTS + TOKEN * 500)))
    assert str(refusal.value).endswith(
        " of HBM where the KV pool has 1,000 KiB; shorten the context, use more GPUs (--tp) or "
        "choose a scheme that keeps KV in host memory (--scheme)"
    )


def test_notes_count_as_language_does() -> None:
    """One step is no steps, and thousands are separated."""
    found = simulate(scenario("dense", workload=closed_loop(1, 120_000, 2), max_steps=1)).notes
    assert "longer than the 100,000 tokens that tiny was made for: 1 request" in found
    assert "stopped after 1 step as asked" in found


def test_weights_that_do_not_fit_are_refused() -> None:
    """A card smaller than the weights gives the arithmetic, not a prediction."""
    with pytest.raises(RunFailed, match="leaves no room for KV"):
        simulate(scenario("dense", profile=card(WEIGHTS)))


def test_offload_switches_to_sparse_and_frees_hbm() -> None:
    """After the switch rows are sparse, host memory is in use, and HBM holds the working set."""
    result = simulate(scenario("oasis", workload=closed_loop(1, 1500, 200), concurrency=1))
    steps = result.steps
    assert steps.sparse_rows[-1] == 1
    assert steps.host_kv_bytes[-1] == TOKEN * 1700
    assert steps.hbm_kv_bytes[-1] < TOKEN * 1000
    assert int(steps.d2h_bytes.sum()) >= TOKEN * 1500


def test_a_short_context_stays_dense() -> None:
    """Below the token budget nothing is offloaded and nothing moves."""
    result = simulate(scenario("oasis", workload=closed_loop(2, 100, 20)))
    assert int(result.steps.sparse_rows.max()) == 0
    assert int(result.steps.h2d_bytes.sum()) == 0


def test_max_steps_ends_the_run_early() -> None:
    """A run of 10 steps leaves requests running and keeps its window."""
    result = simulate(scenario(max_steps=10))
    check_run(result)
    assert 10 == len(result.steps)
    assert np.any(result.requests.status == STATUS.index("running"))


def test_the_schedule_moves_what_the_steps_count() -> None:
    """Moves of the window equal the admitted blocks of its steps, layer by layer."""
    result = simulate(scenario(workload=closed_loop(4, 1500, 200), concurrency=2))
    schedule = result.schedule
    assert schedule is not None
    assert schedule.moves > 0
    first = int(schedule.step[0])
    counted = result.steps.admitted_blocks[first : first + len(schedule.step)]
    per_step = np.diff(schedule.move_offset[:: TINY.layers])
    assert per_step.tolist() == counted.tolist()


@pytest.mark.parametrize(("max_steps", "first"), [(None, 150), (150, 142)])
def test_no_batch_runs_past_its_window(max_steps: int | None, first: int) -> None:
    """Requests that all end together leave a schedule: at three quarters, or the last 8 steps."""
    load = closed_loop(2, 1500, 200)
    result = simulate(scenario(workload=load, concurrency=2, max_steps=max_steps))
    assert result.schedule is not None
    assert len(result.slices) > 0
    assert list(range(first, first + 8)) == result.schedule.step.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 3}, "does not divide"),
        ({"concurrency": 0}, "concurrency"),
        ({"traces": ()}, "trace"),
    ],
)
def test_contradictory_scenarios_are_usage_errors(options: dict[str, object], words: str) -> None:
    """Options that cannot go together say so."""
    with pytest.raises(UsageError, match=words):
        simulate(dataclasses.replace(scenario(), **options))


def with_static_batches(profile: HardwareProfile) -> HardwareProfile:
    """Return a profile whose vllm engine serves batch by batch."""
    costs = dataclasses.replace(profile.engine("vllm"), static_batches=True)
    return dataclasses.replace(profile, engines={**profile.engines, "vllm": costs})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_static_batch_starts_and_ends_together(scheme: str) -> None:
    """Two batches of three: one admission, first token and end each, nothing in between."""
    profile = with_static_batches(card(8 * 10**9))
    result = simulate(scenario(scheme, profile=profile))
    check_run(result)
    for log in (result.requests.admitted_ps, result.requests.first_token_ps):
        assert [3, 3] == np.unique(log, return_counts=True)[1].tolist()
    first, second = np.unique(result.requests.finish_ps)
    assert first == result.requests.admitted_ps.max() < second


@pytest.mark.parametrize("scheme", ["dense", "oasis", "shadowkv", "freekv"])
def test_a_static_batch_that_does_not_fit_is_refused(scheme: str) -> None:
    """Room for two requests and not for three refuses the batch, with the arithmetic."""
    profile = with_static_batches(card(WEIGHTS + 2 * TOKEN * (1024 + 40 + 16) + TOKEN))
    with pytest.raises(RunFailed, match=r"a static batch of 3 requests does not fit: it needs"):
        simulate(scenario(scheme, profile=profile, concurrency=3))
    fits = simulate(scenario("dense", profile=profile, concurrency=2))
    assert 2 == int(fits.steps.dense_rows.max())


def test_without_a_limit_a_static_batch_takes_what_fits() -> None:
    """With room for two, six waiting requests are served as three batches of two."""
    profile = with_static_batches(card(WEIGHTS + 2 * TOKEN * (1024 + 40 + 16) + TOKEN))
    result = simulate(scenario("dense", profile=profile, concurrency=None))
    check_run(result)
    assert [2, 2, 2] == np.unique(result.requests.finish_ps, return_counts=True)[1].tolist()


@given(
    workloads(span_ms=80, prompt=3000, output=60, most=8),
    st.sampled_from(SCHEMES),
    st.sampled_from([None, 1, 3]),
    st.integers(3_700, 20_000),
)
@settings(max_examples=60, deadline=None)
def test_any_workload_is_served_or_refused(
    workload: Workload, scheme: str, concurrency: int | None, room_tokens: int
) -> None:
    """Whatever arrives, every request completes within memory, and bytes and tokens add up."""
    result = simulate(
        scenario(
            scheme,
            workload=workload,
            concurrency=concurrency,
            profile=card(WEIGHTS + TOKEN * room_tokens),
        )
    )
    check_run(result)
    assert np.all(result.requests.status == STATUS.index("completed"))
