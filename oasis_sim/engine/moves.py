"""Turn the window of a run into a schedule: the very blocks that each step moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from oasis_sim.engine import state as p
from oasis_sim.engine.costs import CostModel
from oasis_sim.engine.log import STAGE_COLUMNS
from oasis_sim.engine.result import STAGES
from oasis_sim.engine.scenario import Scenario
from oasis_sim.engine.schedule import Schedule
from oasis_sim.engine.walks import Walks, residency_rule
from oasis_sim.engine.window import WindowStep
from oasis_sim.residency.walk import WalkMoves, walk_moves
from oasis_sim.scheme import Scheme


def build_schedule(
    scenario: Scenario, walks: Walks, window: Sequence[WindowStep]
) -> Schedule | None:
    """Return the schedule of the window's first steps; None without one, or if it has no form.

    The blocks come from the trace, in the trace's own context: a block of the trace stands for
    the block of the same number of the request. All KV heads of the model are listed.
    """
    steps = window[: scenario.schedule_steps]
    if not can_replay(scenario.scheme):
        return None
    if not steps or max(len(step.request) for step in steps) == 0:
        return None
    width = max(len(step.request) for step in steps)
    request = np.full((len(steps), width), -1, dtype=np.int64)
    context = np.zeros((len(steps), width), dtype=np.int32)
    for i, step in enumerate(steps):
        request[i, : len(step.request)] = step.request
        context[i, : len(step.request)] = step.context + 1
    sparse = np.array([len(step.walk) for step in steps], dtype=np.int32)
    total = np.array([len(step.request) for step in steps], dtype=np.int32)
    moves = _moves(scenario, walks, steps)
    times = np.stack([step.times for step in steps])
    blocks = int(moves["move_block"].max(initial=0)) + 1
    held = -(-int(context.max()) // scenario.scheme.block_tokens)
    return Schedule.from_arrays(
        {**_meta(scenario, max(blocks, held)), "collective_ps": _collectives(scenario, total)},
        step=np.array([step.step for step in steps], dtype=np.int64),
        rows=sparse,
        dense_rows=total - sparse,
        row_request=request,
        context_tokens=context,
        sim_step_ps=times[:, p.OUT_END] - times[:, p.OUT_START],
        sim_stage_ps=times[:, [STAGE_COLUMNS[name] for name in STAGES]],
        **moves,
    )


def can_replay(scheme: Scheme) -> bool:
    """Say whether a schedule can hold the moves: whole blocks, K and V, one list per step."""
    if not scheme.offload:
        return not scheme.selects
    whole = scheme.fetch_unit_tokens in {0, scheme.block_tokens}
    plain = whole and scheme.key_rank == 0 and scheme.host_bytes_per_element == 0
    capped_by_head = scheme.cap_over == "head" and not scheme.adaptive_cap
    known = (
        scheme.reuse and scheme.evict == "least_recently_selected" and scheme.correction_share == 0
    )
    listed = capped_by_head and known and not scheme.speculative
    return plain and listed and scheme.lookahead != "one_layer"


def _meta(scenario: Scenario, host_blocks: int) -> dict[str, Any]:
    scheme, model = scenario.scheme, scenario.model
    return {
        "model": dataclasses.asdict(model),
        "scheme": {
            **scheme.to_config(),
            "chosen_blocks": scheme.chosen_blocks,
            "pool_blocks": scheme.pool_blocks,
            "cap_blocks": scheme.admission_cap,
        },
        "profile": scenario.profile.name,
        "engine": scenario.engine_name,
        "transport": scheme.transport,
        "layers": model.layers,
        "kv_heads": model.kv_heads,
        "host_blocks": host_blocks,
        "tp": scenario.tp,
        "trace_origin": sorted({trace.origin for trace in scenario.traces}),
        "stages": list(STAGES),
    }


def _collectives(scenario: Scenario, requests: npt.NDArray[np.int32]) -> list[int]:
    """Return the time of each step's collectives between GPUs, part of its output and FFN."""
    cost = CostModel(
        scenario.profile, scenario.engine_name, scenario.model, scenario.scheme, scenario.tp
    )
    layers, each = scenario.model.layers, cost.rows_per_request
    return [layers * cost.collective_ps(count * each) for count in requests.tolist()]


def _moves(
    scenario: Scenario, walks: Walks, steps: Sequence[WindowStep]
) -> dict[str, npt.NDArray[Any]]:
    """List the moves of every step, layer and row, in the order of the schedule."""
    layers = scenario.model.layers
    by_trace = [_trace_moves(scenario, walks, which) for which in range(len(walks.walks))]

    @cache
    def of(place: int, layer: int) -> tuple[npt.NDArray[Any], ...]:
        which, step = walks.locate(place)
        return by_trace[which].layer(step, layer)

    parts: list[tuple[npt.NDArray[Any], ...]] = []
    rows: list[npt.NDArray[np.uint16]] = []
    offset = np.zeros(len(steps) * layers + 1, dtype=np.int64)
    for i, step in enumerate(steps):
        places = step.walk.tolist()
        for layer in range(layers):
            found = [of(place, layer) for place in places]
            sizes = [len(head) for head, _, _ in found]
            parts.extend(found)
            rows.append(np.repeat(np.arange(len(places), dtype=np.uint16), sizes))
            offset[i * layers + layer + 1] = sum(sizes)
    empty = np.zeros(0, dtype=np.uint16)
    head, block, slot = (
        np.concatenate([part[i] for part in parts]) if parts else empty for i in range(3)
    )
    return {
        "move_offset": np.cumsum(offset),
        "move_row": np.concatenate(rows) if rows else empty,
        "move_head": head.astype(np.uint8),
        "move_block": block.astype(np.uint32),
        "move_slot": slot.astype(np.uint16),
    }


def _trace_moves(scenario: Scenario, walks: Walks, which: int) -> WalkMoves:
    table = walks.walks[which]
    scheme = scenario.scheme
    return walk_moves(
        scenario.traces[which],
        residency_rule(scheme),
        scheme.predictor,
        scenario.drafter,
        scenario.model,
        table,
        range(table.period),
    )
