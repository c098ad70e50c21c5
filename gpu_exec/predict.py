"""Simulate a validation case with the engine's own cost model and return its schedule."""

from __future__ import annotations

from gpu_exec.matrix import DENSE, ValidationCase
from oasis_sim.engine import Scenario, simulate
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import RunFailed
from oasis_sim.hardware import HardwareProfile
from oasis_sim.model import ModelShape
from oasis_sim.scheme import Scheme, load_scheme, with_options
from oasis_sim.trace import AttentionTrace
from oasis_sim.trace.synth import synthesize
from oasis_sim.trace.synth_parameters import SynthParameters
from oasis_sim.workload import closed_loop

OUTPUT_TOKENS = 1_536
WINDOW_STEPS = 8
AMPLE_HOST_BYTES = 1 << 44
TRACE_STEPS = 24
TRACE_LAYERS = 6
TRACE_HEADS = 4
ENGINE = "gpu_exec"


def predict(
    case: ValidationCase, profile: HardwareProfile, model: ModelShape, steps: int
) -> Schedule:
    """Return `steps` consecutive decode steps in the middle of a closed loop of the case.

    All requests decode in the window; moves come from a synthetic trace of the case's context.
    Host memory is taken as large enough, since execution shares host units anyway. Raises
    RunFailed when the card cannot hold the batch.
    """
    scheme = case_scheme(case)
    scenario = Scenario(
        profile=profile,
        engine_name=ENGINE,
        model=model,
        scheme=scheme,
        traces=(case_trace(case, scheme, model),) if scheme.offload else (),
        workload=closed_loop(case.batch, case.context_tokens, OUTPUT_TOKENS),
        concurrency=case.batch,
        host_bytes=AMPLE_HOST_BYTES,
        schedule_steps=steps,
    )
    schedule = simulate(scenario).schedule
    if schedule is None:
        raise RunFailed(f"{case.label()}: the simulation gave no schedule")
    rows = schedule.rows if scheme.offload else schedule.dense_rows
    if int(rows.min()) < case.batch:
        raise RunFailed(
            f"{case.label()}: only {int(rows.min())} of {case.batch} requests decode together on "
            f"{profile.name}; the card cannot hold them"
        )
    return schedule


def case_scheme(case: ValidationCase) -> Scheme:
    """Return the scheme of a case."""
    if case.scheme == DENSE:
        return with_options(load_scheme(DENSE), block_tokens=case.block_tokens)
    return with_options(
        load_scheme(case.scheme),
        fetch_ratio=1.0 if case.fetch_ratio is None else case.fetch_ratio,
        block_tokens=case.block_tokens,
        budget_tokens=case.budget_tokens,
        transport=case.transport,
    )


def case_trace(case: ValidationCase, scheme: Scheme, model: ModelShape) -> AttentionTrace:
    """Return a synthetic trace with the case's context, block size and budget."""
    blocks = case.context_tokens // case.block_tokens
    return synthesize(
        SynthParameters(
            name="synthetic-validation",
            model_name=model.name,
            model_layers=model.layers,
            kv_heads=model.kv_heads,
            query_heads=model.query_heads,
            head_dim=model.head_dim,
            vocab=model.vocab,
            context_tokens=case.context_tokens,
            steps=TRACE_STEPS,
            recorded_layers=min(TRACE_LAYERS, model.layers),
            recorded_heads=min(TRACE_HEADS, model.kv_heads),
            block_tokens=case.block_tokens,
            stored_blocks=min(2 * scheme.chosen_blocks, blocks),
        ),
        seed=case.batch,
    )
