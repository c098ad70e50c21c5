"""What a simulation returns: logs per step and per request, a timeline, memory and bounds.

The engine fills these arrays; `oasis_sim.metrics` folds them and `oasis_sim.report` draws them.
Times are integer picoseconds on the simulated clock. What is held is in bytes per GPU; what moves
(blocks, bytes over links) is that of all GPUs together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from oasis_sim.engine.totals import StepTotals

if TYPE_CHECKING:
    from oasis_sim.engine.scenario import Scenario
    from oasis_sim.engine.schedule import Schedule

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

STAGES = (
    "qkv",
    "attention",
    "output_ffn",
    "lm_head",
    "draft",
    "prediction",
    "selection",
    "transfer",
    "launch",
    "prefill",
    "transfer_wait",
)
BOUNDS = ("compute", "transfer", "prefill")
STATUS = ("completed", "rejected", "running", "waiting")


@dataclass(frozen=True, eq=False)
class StepLog:
    """Hold one value per step, S steps.

    `stage_ps[s, i]` is the time that stage `STAGES[i]` was busy in step s (background stages
    overlap the foreground, so a row does not add up to the step's length). `deferred_blocks` are
    predicted blocks that the cap left in host memory. `h2d_bytes` are those of all GPUs,
    `rank_h2d_bytes` int64[S, R] those of one GPU of each rank (see ``stretch.WalkTables``).
    `overlap`, `mass` and `lost_mass` are means over the step's sparse rows, NaN in a step without
    one.
    """

    start_ps: IntArray
    end_ps: IntArray
    sparse_rows: npt.NDArray[np.int32]
    dense_rows: npt.NDArray[np.int32]
    prefill_tokens: IntArray
    context_tokens: IntArray
    admitted_blocks: IntArray
    needed_blocks: IntArray
    deferred_blocks: IntArray
    h2d_bytes: IntArray
    rank_h2d_bytes: IntArray
    d2h_bytes: IntArray
    network_bytes: IntArray
    hbm_kv_bytes: IntArray
    host_kv_bytes: IntArray
    output_tokens: npt.NDArray[np.int32]
    stage_ps: npt.NDArray[np.int64]
    bound: npt.NDArray[np.uint8]
    overlap: FloatArray
    mass: FloatArray
    lost_mass: FloatArray

    def __len__(self) -> int:
        return len(self.start_ps)

    def folded(self) -> StepTotals:
        """Return the sums over all steps."""
        lengths = self.end_ps - self.start_ps
        decoding = (self.prefill_tokens == 0) & (self.output_tokens > 0)
        kinds = [self.bound == kind for kind in range(len(BOUNDS))]
        return StepTotals(
            step_ps=lengths,
            rows=(self.sparse_rows + self.dense_rows).astype(np.int32),
            stage_ps=self.stage_ps.sum(axis=0),
            bound_steps=np.array([np.count_nonzero(kind) for kind in kinds], dtype=np.int64),
            bound_ps=np.array([lengths[kind].sum() for kind in kinds], dtype=np.int64),
            sparse_rows=int(self.sparse_rows.sum()),
            output_tokens=int(self.output_tokens.sum()),
            prefill_tokens=int(self.prefill_tokens.sum()),
            decode_ps=int(lengths[decoding].sum()),
            decode_tokens=int(self.output_tokens[decoding].sum()),
            h2d_bytes=int(self.h2d_bytes.sum()),
            rank_h2d_bytes=self.rank_h2d_bytes.sum(axis=0),
            d2h_bytes=int(self.d2h_bytes.sum()),
            network_bytes=int(self.network_bytes.sum()),
            needed_blocks=int(self.needed_blocks.sum()),
            admitted_blocks=int(self.admitted_blocks.sum()),
            deferred_blocks=int(self.deferred_blocks.sum()),
            peak_hbm_bytes=int(self.hbm_kv_bytes.max(initial=0)),
            peak_host_bytes=int(self.host_kv_bytes.max(initial=0)),
            end_ps=int(self.end_ps[-1]) if len(self) else 0,
        )


@dataclass(frozen=True, eq=False)
class RequestLog:
    """Hold one value per request, N requests; a time of -1 means that it never happened."""

    arrival_ps: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    generated_tokens: IntArray
    admitted_ps: IntArray
    first_token_ps: IntArray
    finish_ps: IntArray
    preemptions: npt.NDArray[np.int32]
    status: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.arrival_ps)


@dataclass(frozen=True)
class Slice:
    """Describe one interval of one track of the timeline (a stream or a link)."""

    track: str
    name: str
    start_ps: int
    end_ps: int
    args: Mapping[str, int | str]


@dataclass(frozen=True)
class MemoryPlan:
    """State how the memory of one GPU and its share of the host was resolved, in bytes.

    `sparse_request_bytes` and `dense_request_bytes` are the HBM that one request of the
    scenario's full length (prompt and output) occupies in each phase.
    """

    hbm_capacity_bytes: int
    hbm_usable_bytes: int
    weights_bytes: int
    reserved_bytes: int
    kv_pool_bytes: int
    host_capacity_bytes: int
    dense_request_bytes: int
    sparse_request_bytes: int
    host_request_bytes: int


@dataclass(frozen=True)
class Quality:
    """Hold quality proxies read off the trace, never called accuracy; None where not recorded."""

    topk_agreement: float | None
    mass_mean: float | None
    mass_p5: float | None
    lost_mass_mean: float | None
    lost_mass_p95: float | None
    trace_origin: str


@dataclass(frozen=True)
class RooflineBounds:
    """Hold the limits that no run of this scenario can beat."""

    step_ms_lower: float
    output_tokens_per_s_upper: float


@dataclass(frozen=True, eq=False)
class RunResult:
    """Collect everything that one simulated run produced.

    `itl_ps` and `itl_count` give inter-token latencies with multiplicity: `itl_count[i]` tokens
    came `itl_ps[i]` picoseconds after their predecessor. `held_ps` is the time for which each kind
    of ``holdups`` kept the batch from growing.
    """

    scenario: Scenario
    steps: StepLog
    requests: RequestLog
    slices: tuple[Slice, ...]
    memory: MemoryPlan
    itl_ps: IntArray
    itl_count: IntArray
    quality: Quality
    bounds: RooflineBounds
    schedule: Schedule | None
    notes: tuple[str, ...]
    held_ps: Mapping[str, int]
    folded: StepTotals | None = None

    @cached_property
    def totals(self) -> StepTotals:
        """Return the sums over all steps; with `folded`, `steps` may hold some of them only."""
        return self.steps.folded() if self.folded is None else self.folded
