"""The default run, scaled to the device that is to replay it."""

from __future__ import annotations

from dataclasses import replace

from gpu_exec.device import query_gpus
from oasis_sim.engine import simulate
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.memory import footprint
from oasis_sim.engine.schedule import Schedule
from oasis_sim.engine.spec import LoadSpec, ScenarioSpec
from oasis_sim.errors import RunFailed
from oasis_sim.hardware import load_profile
from oasis_sim.model import load_model

PROFILE = "h200"
ENGINE = "gpu_exec"
CPU_BATCH = 4
OUTPUT_TOKENS = 1_024
FREE_SHARE = 0.9
AMPLE_HOST_BYTES = 1 << 44


def default_schedule(kind: str, profile: str = PROFILE) -> Schedule:
    """Simulate the default scenario with as many requests as the device holds.

    `kind` cuda: as many as fit in the free HBM, at most the default concurrency; cpu: a few. Host
    memory is taken as large enough, since execution shares host units where it is not.
    """
    spec = ScenarioSpec(profile=profile, engine=ENGINE, host_bytes=AMPLE_HOST_BYTES)
    batch = CPU_BATCH if kind == "cpu" else _fitting_batch(spec)
    load = LoadSpec(requests=batch, output_tokens=OUTPUT_TOKENS)
    schedule = simulate(replace(spec, load=load, concurrency=batch).scenario()).schedule
    if schedule is None:
        raise RunFailed("the default run gave no schedule")
    return schedule


def _fitting_batch(spec: ScenarioSpec) -> int:
    gpus = query_gpus()
    free = min((gpu.free_bytes for gpu in gpus if gpu.free_bytes), default=0)
    profile = load_profile(spec.profile)
    cost = CostModel(profile, spec.engine, load_model(spec.model), spec.scheme, 1)
    tokens = (spec.load.context_tokens or 0) + OUTPUT_TOKENS
    room = FREE_SHARE * free - cost.share.weight_bytes - cost.costs.reserved_per_gpu(cost.share.tp)
    fitting = int(room // footprint(cost).sparse_bytes(tokens))
    if fitting < 1:
        raise RunFailed(
            f"{free} bytes of free HBM do not hold the model and one request; "
            "replay the run directory of a smaller model"
        )
    return min(spec.concurrency or fitting, fitting)
