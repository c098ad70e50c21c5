"""Describe one GPU decode step: model shape, working set, transport, stages, move list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_exec.kernels.shape import HEAD_DIM, StepShape
from oasis_sim.errors import InputError, UsageError

__all__ = [
    "BYTES_PER_TOKEN_HEAD",
    "GRAPH_TRANSPORTS",
    "HEAD_DIM",
    "LOCAL_SLOTS",
    "TILE_TOKENS",
    "TRANSPORTS",
    "StageSwitches",
    "StepConfig",
    "StepMoves",
    "StepShape",
    "StepTimes",
    "synthetic_moves",
]

TILE_TOKENS = 16
"""Tokens per tile: the row count of one tensor-core operand; blocks are whole tiles."""
BYTES_PER_TOKEN_HEAD = 2 * HEAD_DIM * 2
"""Key and value of one token and KV head in bf16."""
LOCAL_SLOTS = 2
"""Slots per (request, layer, head) for the active block and the one that follows it."""

TRANSPORTS = ("warp_gather", "tma_gather", "copy_engine", "naive")
GRAPH_TRANSPORTS = TRANSPORTS[:2]
"""The gathers are part of the graph; the others are copies that the host submits."""
ARRANGEMENTS = ("always", "window", "resident")
"""One gather per layer; gathers only beside scan and attention; one gather for the whole step.

Transports that the host drives work layer by layer, whatever the arrangement says."""
PREDICTIONS = ("inline", "stream")
"""Scan before attention on the foreground, or beside it on a stream of its own."""
SELECTIONS = ("fused", "separate")
"""Selection by the last CTA of a pair's scan, or as a kernel on a stream of its own."""
GEMMS = ("library", "persistent")
KEY_FORMATS = ("bf16", "fp8")
"""Of the compressed keys, and of the draft head's own KV."""


@dataclass(frozen=True)
class StageSwitches:
    """Leave stages of the step out (ablation) or run all of them one after another."""

    scan: bool = True
    selection: bool = True
    transfer: bool = True
    mirror: bool = True
    attention: bool = True
    linear: bool = True
    draft: bool = True
    all_reduce: bool = True  # between devices that share a step
    serial: bool = False


@dataclass(frozen=True)
class StepConfig:
    """Fix everything that a captured step depends on.

    ``context_capacity`` is the largest position a row may reach (it sizes the tables); positions
    come with the moves. ``copy_threads`` host threads submit batches of copies (one thread single
    copies), each to a stream of its own with at most ``copies_ahead`` parts under way.
    ``moves_from`` says whose copy list the transfer executes: the schedule's (selection then runs
    beside it on its own state) or the one that selection publishes.
    """

    shape: StepShape
    batch: int
    context_capacity: int
    block_tokens: int = 16
    chosen_blocks: int = 128
    pool_blocks: int = 128
    cap_blocks: int = 6
    dense: bool = False
    draft_row: bool = True
    key_format: str = "bf16"
    draft_kv: str = "bf16"
    transport: str = "tma_gather"
    gather_ctas: int = 8
    gather_threads: int = 256
    gather_ring: int = 12
    gather_exclusive: bool = True
    copies_ahead: int = 4
    copy_threads: int = 4
    arrangement: str = "always"
    gemm: str = "library"
    early_launch: bool = True
    prediction: str = "inline"
    selection: str = "separate"
    moves_from: str = "schedule"
    host_bytes: int = 4 << 30
    stamped: bool = True
    seed: int = 0
    stages: StageSwitches = field(default_factory=StageSwitches)

    def __post_init__(self) -> None:
        """Refuse what the kernels cannot run."""
        if self.shape.head_dim != HEAD_DIM:
            raise UsageError(f"the kernels need head dimension {HEAD_DIM}")
        if self.shape.group not in (1, 2, 4, 8, 16):
            raise UsageError(f"{self.shape.group} query heads per KV head are not supported")
        if self.block_tokens % TILE_TOKENS or not 16 <= self.block_tokens <= 128:
            raise UsageError("block tokens must be 16, 32, 48, 64, ... 128")
        if self.batch < 1 or self.pool_blocks < self.chosen_blocks or self.chosen_blocks < 1:
            raise UsageError("need batch >= 1 and pool blocks >= chosen blocks >= 1")
        if self.pool_blocks > 1024:
            raise UsageError("the selection kernel holds at most 1024 pool blocks per head")
        if not 3 <= self.gather_ring <= 24 or self.gather_threads not in (128, 256, 512):
            raise UsageError("a gather needs 3 to 24 ring stages and 128, 256 or 512 threads")
        if self.copy_threads < 1 or self.copies_ahead < 1:
            raise UsageError("copies need a thread that submits them and a part under way")
        self._check_names()

    def _check_names(self) -> None:
        """Refuse unknown names and combinations that cannot work."""
        for value, known, name in (
            (self.transport, TRANSPORTS, "transport"),
            (self.arrangement, ARRANGEMENTS, "arrangement"),
            (self.gemm, GEMMS, "gemm"),
            (self.key_format, KEY_FORMATS, "key format"),
            (self.draft_kv, KEY_FORMATS, "format of the draft's KV"),
            (self.prediction, PREDICTIONS, "prediction"),
            (self.selection, SELECTIONS, "selection"),
            (self.moves_from, ("schedule", "selection"), "source of moves"),
        ):
            if value not in known:
                raise UsageError(f"unknown {name} {value!r}; one of {', '.join(known)}")
        if self.transport not in GRAPH_TRANSPORTS and self.moves_from != "schedule":
            raise UsageError(f"transport {self.transport} needs a schedule: the host names units")
        if self.transport not in GRAPH_TRANSPORTS and self.arrangement == "window":
            raise UsageError("only the gathers can be confined to a window")

    @property
    def rows_per_request(self) -> int:
        """Query rows per request: the normal row and, when there is one, the draft row."""
        return 2 if self.draft_row and not self.dense else 1

    @property
    def rows(self) -> int:
        """Rows of every linear layer."""
        return self.batch * self.rows_per_request

    @property
    def pairs(self) -> int:
        """(request, KV head) pairs, each with a pool of its own."""
        return self.batch * self.shape.kv_heads

    @property
    def unit_bytes(self) -> int:
        """Bytes of one transfer unit: K and V of one block and KV head."""
        return self.block_tokens * BYTES_PER_TOKEN_HEAD

    @property
    def max_blocks(self) -> int:
        """Blocks a row can have, a multiple of 16 so that key tiles are whole."""
        blocks = -(-(self.context_capacity + 2) // self.block_tokens)
        return -(-blocks // TILE_TOKENS) * TILE_TOKENS

    @property
    def slots_per_pair(self) -> int:
        """Pool slots of one pair, local ones included."""
        return (self.max_blocks if self.dense else self.pool_blocks) + LOCAL_SLOTS

    @property
    def host_driven(self) -> bool:
        """True when the host submits the copies, layer by layer."""
        moves = self.stages.transfer and not self.dense
        return moves and self.transport not in GRAPH_TRANSPORTS

    @property
    def host_units(self) -> int:
        """Units of the pinned pool, at most what the modelled pool has."""
        return max(1, min(self.logical_host_units, self.host_bytes // self.unit_bytes))

    @property
    def logical_host_units(self) -> int:
        """Units of the modelled pool: ((row * layers + layer) * heads + head) * blocks + block."""
        return self.pairs * self.shape.layers * self.max_blocks

    @property
    def host_aliased(self) -> bool:
        """True when the pinned pool is smaller than the modelled one, so units are shared."""
        return self.host_units < self.logical_host_units


@dataclass(frozen=True, eq=False)
class StepMoves:
    """Hold the block copies of S steps, in execution order, and the rows' positions.

    ``offset`` int64[S*L+1]; ``row``, ``head``, ``slot``, ``host_unit`` integer[N] in the order
    step, layer (``host_unit`` indexes the pinned pool); ``context_tokens`` int32[S, B] is the
    position of each row's normal token.
    """

    offset: npt.NDArray[np.int64]
    row: npt.NDArray[np.integer[Any]]
    head: npt.NDArray[np.integer[Any]]
    slot: npt.NDArray[np.integer[Any]]
    host_unit: npt.NDArray[np.integer[Any]]
    context_tokens: npt.NDArray[np.int32]

    @property
    def steps(self) -> int:
        """Steps that the list covers."""
        return int(self.context_tokens.shape[0])

    def check(self, config: StepConfig) -> None:
        """Refuse a list that would write outside the pools of ``config``."""
        layers = config.shape.layers
        if len(self.offset) != self.steps * layers + 1:
            raise InputError("length is not steps x layers + 1", field="move_offset")
        if self.context_tokens.shape[1] != config.batch:
            raise InputError("rows differ from the batch", field="context_tokens")
        if np.any(np.diff(self.offset) < 0) or int(self.offset[-1]) != len(self.row):
            raise InputError("offsets fall or do not cover the moves", field="move_offset")
        for name, values, limit in (
            ("move_row", self.row, config.batch),
            ("move_head", self.head, config.shape.kv_heads),
            ("move_slot", self.slot, config.pool_blocks),
            ("host_unit", self.host_unit, config.host_units),
        ):
            if len(values) and (int(values.min()) < 0 or int(values.max()) >= limit):
                raise InputError(f"value outside 0..{limit - 1}", field=name)
        if int(self.context_tokens.max(initial=0)) > config.context_capacity:
            raise InputError("position above the capacity", field="context_tokens")


def synthetic_moves(config: StepConfig, steps: int, per_head: float, context: int) -> StepMoves:
    """Draw random moves, ``per_head`` blocks per (row, head, layer, step) on average.

    Positions are spread over the block phases and advance by one per step.
    """
    rng = np.random.default_rng(config.seed)
    shape, pairs = config.shape, config.pairs
    whole, part = divmod(per_head, 1.0)
    offset = np.zeros(steps * shape.layers + 1, dtype=np.int64)
    pair_parts, slot_parts = [], []
    for index in range(steps * shape.layers):
        extra = (rng.random(pairs) < part).astype(np.int64)
        counts = np.minimum(int(whole) + extra, config.pool_blocks)
        pair = np.repeat(np.arange(pairs), counts)
        order = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
        shift = rng.integers(0, config.pool_blocks, pairs)
        pair_parts.append(pair)
        slot_parts.append((shift[pair] + order) % config.pool_blocks)
        offset[index + 1] = offset[index] + len(pair)
    pair_all = np.concatenate(pair_parts)
    phase = np.arange(config.batch) % config.block_tokens
    first = np.maximum(context - steps - phase, 1)
    position = (first[None, :] + np.arange(steps)[:, None]).astype(np.int32)
    return StepMoves(
        offset=offset,
        row=(pair_all // shape.kv_heads).astype(np.uint16),
        head=(pair_all % shape.kv_heads).astype(np.uint8),
        slot=np.concatenate(slot_parts).astype(np.uint16),
        host_unit=rng.integers(0, config.host_units, len(pair_all)),
        context_tokens=position,
    )


@dataclass(frozen=True)
class StepTimes:
    """Hold measured times: whole steps and, from an instrumented run, the stages.

    ``step_ms`` is one figure per replayed step; ``stage_ms`` sums a stage over the layers
    (median over steps) and is empty when stages were not asked for. ``raw_stage_ms`` is the same
    as it was measured, with the clocks in it, ``empty_ms`` what one of them takes (see `marks`).
    """

    step_ms: tuple[float, ...]
    stage_ms: Mapping[str, float]
    moved_units: int
    moved_bytes: int
    mirrored_bytes: int
    raw_stage_ms: Mapping[str, float] = field(default_factory=dict)
    empty_ms: float = 0.0

    @property
    def median_ms(self) -> float:
        """Median step time."""
        return float(np.median(self.step_ms))

    @property
    def spread_pct(self) -> float:
        """Largest deviation from the median, in percent of it."""
        values = np.asarray(self.step_ms)
        return float(np.abs(values - np.median(values)).max() / np.median(values) * 100)
