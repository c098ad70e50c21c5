"""Simulate one scenario: build the parts, run the serving loop, collect the result."""

from __future__ import annotations

import numpy as np

from oasis_sim.engine.bounds import roofline_bounds
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import plan_memory
from oasis_sim.engine.moves import build_schedule
from oasis_sim.engine.requests import RequestBook
from oasis_sim.engine.result import Quality, RunResult, StepLog
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.serving import Progress, ServingLoop
from oasis_sim.engine.trace_fit import check_traces, longest_request, trace_notes
from oasis_sim.engine.walks import Walks, build_walks
from oasis_sim.engine.window import Window, slices
from oasis_sim.errors import RunFailed, UsageError
from oasis_sim.text import counted


def simulate(scenario: Scenario, progress: Progress | None = None) -> RunResult:
    """Run a scenario and return everything that happened.

    `progress(done, expected)` is called now and then with output tokens. Raises UsageError for
    parts that do not go together and RunFailed for what cannot fit, with the arithmetic.
    """
    check_scenario(scenario)
    workload, model = scenario.workload, scenario.model
    cost = CostModel(scenario.profile, scenario.engine_name, model, scenario.scheme, scenario.tp)
    longest = int((workload.prompt_tokens + workload.output_tokens).max())
    plan = plan_memory(cost, longest, scenario.host_bytes)
    walks = build_walks(
        scenario.traces, scenario.scheme, cost.share, scenario.drafter, scenario.seed
    )
    book = RequestBook(workload, scenario.concurrency, scenario.think_ps)
    window = Window(scenario.schedule_steps, book.expected_total, scenario.max_steps)
    loop = ServingLoop(cost, plan, walks, book, window, scenario.max_steps, progress)
    loop.run()
    if book.rejected == len(book):
        raise RunFailed(f"no request fits: {book.first_refusal}; {book.advice}")
    steps = loop.recorder.finish(cost.share.block_bytes(scenario.scheme), walks.tables.copies)
    gaps, counts = token_gaps(steps, loop.recorder.extra_tokens())
    return RunResult(
        scenario=scenario,
        steps=steps,
        requests=book.log(),
        slices=slices(
            window.steps,
            cost.share.host_bytes_token(scenario.scheme),
            cost.d2h_ps,
            inline=cost.predicts_inline,
        ),
        memory=plan,
        itl_ps=gaps,
        itl_count=counts,
        quality=_quality(scenario, walks, steps),
        bounds=roofline_bounds(
            cost, steps, loop.recorder.dense_context(), loop.service.prefill_flops
        ),
        schedule=build_schedule(scenario, walks, window.steps),
        notes=notes_of(scenario, walks, book, steps),
        held_ps=loop.service.holdups.time_ps,
    )


def check_scenario(scenario: Scenario) -> None:
    """Refuse parts that do not go together."""
    model, tp = scenario.model, scenario.tp
    if problem := model.tp_problem(tp):
        raise UsageError(f"tp={problem}")
    if len(scenario.workload.arrival_ps) == 0:
        raise UsageError("the workload holds no request")
    if tp > 1 and not scenario.profile.engine(scenario.engine_name).tensor_parallel:
        raise RunFailed(f"engine {scenario.engine_name} runs on one GPU, not with tp={tp}")
    if tp > 1:
        scenario.profile.gpu_link  # noqa: B018 - refuses a profile without one
    if scenario.scheme.selects and not scenario.traces:
        raise UsageError(
            f"scheme {scenario.scheme.name} needs an attention trace (--trace aime.jsonl)"
        )
    if scenario.concurrency is not None and scenario.concurrency < 1:
        raise UsageError("concurrency must be 1 or more")
    check_traces(scenario.traces, scenario.scheme, longest_request(scenario))


def _quality(scenario: Scenario, walks: Walks, steps: StepLog) -> Quality:
    """Return the traces' proxies; under an adaptive cap the means over what the steps chose."""
    if not scenario.scheme.adaptive_cap:
        return walks.quality
    weight = steps.sparse_rows / max(int(steps.sparse_rows.sum()), 1)
    overlap, mass, lost = (
        None if np.isnan(column[steps.sparse_rows > 0]).any() else float(np.nansum(column * weight))
        for column in (steps.overlap, steps.mass, steps.lost_mass)
    )
    return Quality(overlap, mass, None, lost, None, walks.quality.trace_origin)


def token_gaps(steps: StepLog, extra: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the length of each step that decoded, and how many tokens came after it.

    An accepted draft comes together with the token before it.
    """
    rows = (steps.sparse_rows + steps.dense_rows).astype(np.int64)
    decoded = rows > 0
    gaps, counts = (steps.end_ps - steps.start_ps)[decoded], rows[decoded]
    if extra:
        gaps, counts = np.append(gaps, 0), np.append(counts, extra)
    return gaps, counts


def notes_of(
    scenario: Scenario, walks: Walks, book: RequestBook, steps: StepLog
) -> tuple[str, ...]:
    """Return what a reader of the result should know."""
    found = [*scenario.workload.warnings, *scenario.scheme.cautions]
    if book.rejected:
        found.append(
            f"{counted(book.rejected, 'request')} refused; {book.first_refusal}; {book.advice}"
        )
    limit = scenario.model.max_context
    total = scenario.workload.prompt_tokens + scenario.workload.output_tokens
    over = int((total > limit).sum())
    if over:
        found.append(
            f"longer than the {limit:,} tokens that {scenario.model.name} was made for: "
            f"{counted(over, 'request')}"
        )
    if walks.walks and any(trace.is_synthetic for trace in scenario.traces):
        found.append("the attention trace is synthetic: block moves and quality are modelled")
    if walks.walks:
        found += trace_notes(scenario)
    if scenario.max_steps is not None and len(steps) >= scenario.max_steps:
        found.append(f"stopped after {counted(len(steps), 'step')} as asked")
    return tuple(found)
