"""From a schedule to what one GPU runs: the step's configuration and its move list. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpu_exec.kernels.config import HEAD_DIM, LOCAL_SLOTS, StepConfig, StepMoves, StepShape
from gpu_exec.moves import MovePlan, head_shards, plan_moves
from oasis_sim.engine.schedule import Schedule
from oasis_sim.errors import UsageError

TRANSPORTS = {"sm_gather": StepConfig.transport, "copy_engine": "copy_engine", "naive": "naive"}


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Hold what one device runs: `plan` numbers its host units and slots."""

    config: StepConfig
    moves: StepMoves
    plan: MovePlan


def step_plans(schedule: Schedule, devices: int, host_bytes: int) -> tuple[StepPlan, ...]:
    """Return one plan per device, the KV heads split over them.

    Raises UsageError for what the kernels cannot run, naming it.
    """
    _check(schedule)
    shards = head_shards(schedule.kv_heads, devices)
    return tuple(_plan(schedule, shard, devices, host_bytes) for shard in shards)


def is_dense(schedule: Schedule) -> bool:
    """Say whether the schedule holds dense rows only."""
    return int(schedule.rows.max()) == 0


def plan_notes(schedule: Schedule, devices: int) -> tuple[str, ...]:
    """Say what of the schedule the kernels leave out."""
    notes = []
    if not is_dense(schedule) and int(schedule.dense_rows.max()) > 0:
        notes.append("dense rows of the window are not executed, sparse ones are")
    recent, sink = schedule.scheme_int("recent_blocks"), schedule.scheme_int("sink_blocks")
    if not is_dense(schedule) and (recent, sink) != (1, 0):
        notes.append(f"the kernels attend one local block, not {recent} recent and {sink} sink")
    if devices > 1:
        notes.append(
            "heads, linear layers and vocabularies are split; what the draft head and the LM head "
            "give is not joined over devices, in the simulation neither"
        )
    return tuple(notes)


def _check(schedule: Schedule) -> None:
    model, scheme = schedule.meta["model"], schedule.meta["scheme"]
    reasons = []
    if model["head_dim"] != HEAD_DIM:
        reasons.append(f"head dimension {HEAD_DIM} (the model has {model['head_dim']})")
    if model["bytes_per_kv"] != 2 or model["bytes_per_weight"] != 2:
        reasons.append("2 bytes per weight and KV element")
    if model.get("experts"):
        reasons.append("a model without routed experts")
    if not is_dense(schedule) and scheme.get("lookahead", "one_step") != "one_step":
        reasons.append("prefetch one step ahead (this scheme fetches on demand)")
    if reasons:
        raise UsageError(
            f"the GPU kernels need {'; '.join(reasons)}; `--device cpu` executes the moves of any "
            "schedule"
        )


def _plan(schedule: Schedule, shard: tuple[int, int], devices: int, host_bytes: int) -> StepPlan:
    config = _config(schedule, shard[1], devices, host_bytes)
    plan = plan_moves(schedule, None if config.dense else config.host_units, shard)
    if not config.dense and plan.placement.units < config.host_units:
        config = replace(config, host_bytes=plan.placement.units * config.unit_bytes)
    return StepPlan(config, _moves(schedule, plan, config), plan)


def _config(schedule: Schedule, heads: int, devices: int, host_bytes: int) -> StepConfig:
    model, dense = schedule.meta["model"], is_dense(schedule)
    share = heads / schedule.kv_heads
    shape = StepShape(
        layers=schedule.layers,
        hidden=model["hidden"],
        intermediate=_multiple(model["intermediate"] * share),
        query_heads=model["query_heads"] * heads // schedule.kv_heads,
        kv_heads=heads,
        vocab=_multiple(model["vocab"] * share) if devices > 1 else model["vocab"],
        draft_vocab=_multiple(StepShape.draft_vocab * share),
    )
    rows = schedule.dense_rows if dense else schedule.rows
    chosen = max(1, schedule.scheme_int("chosen_blocks"))
    return StepConfig(
        shape=shape,
        batch=int(rows.max()),
        context_capacity=int(schedule.context_tokens.max()),
        block_tokens=schedule.scheme_int("block_tokens"),
        chosen_blocks=1 if dense else chosen,
        pool_blocks=1 if dense else max(chosen, schedule.scheme_int("pool_blocks")),
        cap_blocks=max(1, schedule.scheme_int("cap_blocks")),
        dense=dense,
        draft_row=bool(schedule.meta["scheme"].get("draft_row", True)),
        transport=TRANSPORTS[schedule.transport],
        host_bytes=host_bytes,
    )


def _multiple(size: float, of: int = 64) -> int:
    """Round a split dimension up, as sharded weights are padded."""
    return -(-int(np.ceil(size)) // of) * of


def _moves(schedule: Schedule, plan: MovePlan, config: StepConfig) -> StepMoves:
    parts = [plan.step(index) for index in range(schedule.steps)]
    offset = [np.zeros(1, dtype=np.int64)]
    total = 0
    for part in parts:
        offset.append(total + part.layer_offset[1:])
        total += len(part)
    position = np.maximum(schedule.context_tokens[:, : config.batch] - 1, 0)
    return StepMoves(
        offset=np.concatenate(offset),
        row=np.concatenate([part.row for part in parts]),
        head=np.concatenate([part.head for part in parts]),
        slot=np.concatenate([part.slot for part in parts]),
        host_unit=np.concatenate([part.host_unit for part in parts]),
        context_tokens=position.astype(np.int32),
    )


def last_moves(plan: StepPlan) -> StepMoves:
    """Return, as one step, the last unit that the window puts into each slot it writes.

    Ordered by layer, as a step's moves are.
    """
    moves, layers = plan.moves, plan.config.shape.layers
    counts = np.diff(moves.offset)
    layer = np.repeat(np.arange(len(counts)) % layers, counts)
    pair = moves.row.astype(np.int64) * plan.config.shape.kv_heads + moves.head
    slots = plan.config.pool_blocks + LOCAL_SLOTS
    key = (layer * plan.config.pairs + pair) * slots + moves.slot
    last = _last_of_each(key)
    offset = np.searchsorted(layer[last], np.arange(layers + 1))
    return StepMoves(
        offset=offset.astype(np.int64),
        row=moves.row[last],
        head=moves.head[last],
        slot=moves.slot[last],
        host_unit=moves.host_unit[last],
        context_tokens=moves.context_tokens[-1:],
    )


def _last_of_each(key: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index of the last occurrence of each distinct key, ordered by key."""
    _, first_from_end = np.unique(key[::-1], return_index=True)
    return len(key) - 1 - first_from_end
